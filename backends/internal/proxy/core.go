// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/claims"
	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// Rules are what makes one backend differ from another. They are pure.
type Rules struct {
	// Render is all that a service asks for, normalized; nil when it asks for nothing. A frontend without a target is
	// rendered too, so that the service keeps its claim to it.
	Render func(item *fullstate.ServiceEndpoints) *dataplane.Service
	// Adapt, if not nil, returns the service as it is on a node that has these addresses. It does not change its argument.
	Adapt func(s *dataplane.Service, node map[netip.Addr]bool) *dataplane.Service
	// Finish, if not nil, returns what the kernel is to do for a service that has got what it may have, which is
	// something; nil when that is nothing. It does not change its argument.
	Finish func(s *dataplane.Service) *dataplane.Service
}

// core turns changes of services, and of the node's addresses, into changes of what the kernel is to do. Both come
// from goroutines of their own.
type core struct {
	rules   Rules
	guard   *Guard
	metrics *metrics

	mu      sync.Mutex
	node    map[netip.Addr]bool           // the addresses of this node
	wanted  map[string]*dataplane.Service // what each service asks for
	refused map[string]map[netip.Addr]Reason
	lost    map[claims.Refusal]bool // conflicts that were logged
	claims  *claims.Table
	sources *claims.Sources
}

func newCore(rules Rules, guard *Guard, m *metrics) *core {
	return &core{
		rules: rules, guard: guard, metrics: m,
		wanted: map[string]*dataplane.Service{}, refused: map[string]map[netip.Addr]Reason{},
		lost: map[claims.Refusal]bool{}, claims: claims.New(), sources: claims.NewSources(),
	}
}

// update takes changes of services. It calls tell with what changes for the kernel, in order of the calls.
func (c *core) update(list []changes.Change, tell func([]dataplane.Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make([]string, 0, len(list))
	for _, change := range list {
		name := change.Item.Service.NamespacedName()
		names = append(names, name)
		delete(c.wanted, name)
		if change.Op == changes.Delete {
			continue
		}
		if s := c.rules.Render(change.Item); s != nil {
			s.Created = created(change.Item.Service)
			c.wanted[name] = s
		}
	}
	tell(c.decide(names))
}

// created is when the service was made; zero when a server does not tell.
func created(svc *localv1.Service) time.Time {
	if at := svc.GetCreatedAt(); at != 0 {
		return time.Unix(at, 0)
	}
	return time.Time{}
}

// setNode takes the addresses of this node. What depends on them is looked at again.
func (c *core) setNode(node map[netip.Addr]bool, tell func([]dataplane.Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.node = node
	if changes := c.decide(slices.Sorted(maps.Keys(c.wanted))); len(changes) != 0 {
		tell(changes)
	}
}

// decide says what of the wanted of some services the kernel is to do.
func (c *core) decide(names []string) []dataplane.Change {
	asked := make([]dataplane.Change, 0, len(names))
	for _, name := range names {
		change := dataplane.Change{Old: &dataplane.Service{Name: name}}
		var refused map[netip.Addr]Reason
		if s := c.wanted[name]; s != nil {
			change.New, refused = c.permitted(s)
		}
		if c.wanted[name] == nil {
			delete(c.refused, name) // with the service, and no news
		} else {
			c.logRefused(name, refused)
		}
		asked = append(asked, change)
	}
	decided, conflicts := c.claims.Update(asked)
	c.logConflicts(decided, conflicts)
	c.metrics.conflicts.Set(float64(c.claims.Conflicts()))
	out := make([]dataplane.Change, 0, len(decided))
	for _, d := range decided {
		change := dataplane.Change{Old: &dataplane.Service{Name: d.Name()}}
		if d.New != nil && len(d.New.Frontends) != 0 {
			change.New = d.New
			if c.rules.Finish != nil {
				change.New = c.rules.Finish(d.New)
			}
			if change.New != nil {
				change.New.Created = d.New.Created
			}
		}
		out = append(out, change)
	}
	return c.sources.Update(out)
}

// permitted is a service as it is on this node, without the frontends that the guard refuses, and the addresses of
// those. The service itself is not changed. One that has no frontend left is nil.
func (c *core) permitted(s *dataplane.Service) (*dataplane.Service, map[netip.Addr]Reason) {
	if c.rules.Adapt != nil {
		s = c.rules.Adapt(s, c.node)
	}
	var refused map[netip.Addr]Reason
	for i := range s.Frontends {
		if reason := c.guard.refuse(&s.Frontends[i], c.node); reason != "" {
			if refused == nil {
				refused = map[netip.Addr]Reason{}
			}
			refused[s.Frontends[i].IP] = reason
		}
	}
	if refused == nil {
		return s, nil
	}
	out := &dataplane.Service{Name: s.Name, Created: s.Created}
	for i := range s.Frontends {
		if c.guard.refuse(&s.Frontends[i], c.node) == "" {
			out.Frontends = append(out.Frontends, s.Frontends[i])
		}
	}
	if len(out.Frontends) == 0 {
		return nil, refused
	}
	return out, refused
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

// logConflicts logs each conflict once, for as long as the two services and what they want stay the same.
func (c *core) logConflicts(decided []dataplane.Change, conflicts []claims.Refusal) {
	if len(conflicts) == 0 && len(c.lost) == 0 {
		return
	}
	now := map[claims.Refusal]bool{}
	for _, conflict := range conflicts {
		now[conflict] = true
		if c.lost[conflict] {
			continue
		}
		klog.InfoS("An address is another service's, which had it first", "service", conflict.Service,
			"address", conflict.Key, "owner", conflict.Owner)
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
