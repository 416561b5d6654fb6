// SPDX-License-Identifier: Apache-2.0

package allip

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/claims"
	"sigs.k8s.io/kpng/client/localsink/changes"
)

// core turns changes of services, and of the node's addresses, into changes of what the kernel is to do. Both come
// from goroutines of their own.
type core struct {
	config  *Config
	metrics *metrics

	mu      sync.Mutex
	guard   guard
	wanted  map[string]*dataplane.Service // what each service asks for
	refused map[string]map[netip.Addr]Reason
	lost    map[claims.Refusal]bool // conflicts that were logged
	claims  *claims.Table
}

func newCore(config *Config, m *metrics) *core {
	return &core{
		config: config, metrics: m,
		guard:  guard{allow: config.AllowCIDRs, allowNodeIPs: config.AllowNodeIPs},
		wanted: map[string]*dataplane.Service{}, refused: map[string]map[netip.Addr]Reason{},
		lost: map[claims.Refusal]bool{}, claims: claims.New(),
	}
}

// update takes changes of services. It calls tell with what changes for the kernel, in order of the calls.
func (c *core) update(list []changes.Change, tell func([]dataplane.Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, change := range list {
		name := change.Item.Service.NamespacedName()
		names = append(names, name)
		delete(c.wanted, name)
		if change.Op == changes.Delete {
			continue
		}
		if s := render(change.Item, c.config); s != nil {
			c.wanted[name] = s
		}
	}
	tell(c.decide(names))
}

// setNode takes the addresses of this node. What is refused because of them is looked at again.
func (c *core) setNode(node map[netip.Addr]bool, tell func([]dataplane.Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guard.node = node
	if changes := c.decide(slices.Sorted(maps.Keys(c.wanted))); len(changes) != 0 {
		tell(changes)
	}
}

// decide says what of the wanted of some services the kernel is to do.
func (c *core) decide(names []string) []dataplane.Change {
	var asked []dataplane.Change
	for _, name := range names {
		change := dataplane.Change{Old: &dataplane.Service{Name: name}}
		var refused map[netip.Addr]Reason
		if s := c.wanted[name]; s != nil {
			change.New, refused = permitted(s, &c.guard)
		}
		c.logRefused(name, refused)
		asked = append(asked, change)
	}
	decided, conflicts := c.claims.Update(asked)
	c.logConflicts(decided, conflicts)
	c.metrics.conflicts.Set(float64(c.claims.Conflicts()))
	out := make([]dataplane.Change, 0, len(decided))
	for _, d := range decided {
		out = append(out, dataplane.Change{Old: &dataplane.Service{Name: d.Name()}, New: served(d.New)})
	}
	return out
}

// logRefused logs each refused address of a service once, for as long as it stays so.
func (c *core) logRefused(name string, refused map[netip.Addr]Reason) {
	before := c.refused[name]
	for ip, reason := range refused {
		if before[ip] != reason {
			klog.InfoS("An address is not served: "+reason.remedy(), "service", name, "address", ip, "reason", reason)
			c.metrics.refusals.WithLabelValues(string(reason)).Inc()
		}
	}
	for ip := range before {
		if _, still := refused[ip]; !still {
			klog.InfoS("An address is not refused any more", "service", name, "address", ip)
		}
	}
	if len(refused) == 0 {
		delete(c.refused, name)
	} else {
		c.refused[name] = refused
	}
}

// logConflicts logs each conflict once, for as long as the two services and the address stay the same.
func (c *core) logConflicts(decided []dataplane.Change, conflicts []claims.Refusal) {
	now := map[claims.Refusal]bool{}
	for _, conflict := range conflicts {
		now[conflict] = true
		if c.lost[conflict] {
			continue
		}
		klog.InfoS("An address is another service's, which had it first", "service", conflict.Service,
			"address", conflict.Key.IP, "owner", conflict.Owner)
		c.metrics.lost.Inc()
	}
	about := map[string]bool{}
	for _, d := range decided {
		about[d.Name()] = true
	}
	for conflict := range c.lost {
		if about[conflict.Service] && !now[conflict] {
			delete(c.lost, conflict)
		}
	}
	maps.Copy(c.lost, now)
}
