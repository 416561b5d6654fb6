// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// compile is what a Service has in a family; nil is a Service with nothing.
//
// A frontend has one rule in the chain that finds it, which leads to the chain of its pool, by way of a chain of its
// own if there is something to tell apart before. Pools of one Service that are the same share their chain. A pool with
// more than one target has a chain for each of them:
//
//	PORTS -> FRONTEND (sources, local or not) -> POOL (affinity, one at random) -> TARGET (masquerade, DNAT)
func (c *compiler) compile(s *dataplane.Service, f family) (blocks [len(tables)]*block) {
	if s == nil {
		return blocks
	}
	sc := &serviceCompiler{compiler: c, service: s, family: f, pools: map[string]string{}, nat: newBlock(), filter: newBlock()}
	for i := range s.Frontends {
		if fr := &s.Frontends[i]; f.has(fr.IP) {
			sc.redirect(fr)
			sc.refuse(fr)
		}
	}
	for _, e := range s.Egress {
		if f.has(e.Source) {
			sc.nat.share(c.base(egressFrom), join(fromHost(e.Source), saying(s.Name), "-j SNAT --to-source "+e.IP.String()))
		}
	}
	blocks[nat], blocks[filter] = sc.nat, sc.filter
	return blocks
}

// serviceCompiler compiles one Service in one family.
type serviceCompiler struct {
	*compiler
	service     *dataplane.Service
	family      family
	pools       map[string]string // the chains of the pools so far, by what the pools are
	nat, filter *block
}

// find is how a frontend is recognised, and the chains where that is done.
func (sc *serviceCompiler) find(fr *dataplane.Frontend) (match, chain, refuseChain string) {
	port := ""
	if fr.Protocol != dataplane.Any {
		port = fmt.Sprintf("-p %[1]s -m %[1]s --dport %[2]d", fr.Protocol, fr.Port)
	}
	switch {
	case fr.Kind == dataplane.NodePort:
		return port, sc.base(nodePorts), sc.base(refuseNode)
	case fr.Protocol == dataplane.Any:
		return toHost(fr.IP), sc.base(addresses), sc.base(refuseAddrs)
	default:
		return toHost(fr.IP) + " " + port, sc.base(ports), sc.base(refusePorts)
	}
}

// ignore ends the search for a frontend, when there is one but nothing to send to. Without it the packet could become
// that of a frontend for all of the address. The table filter refuses it.
const ignore = "-j ACCEPT"

// redirect writes the rules of the table nat.
func (sc *serviceCompiler) redirect(fr *dataplane.Frontend) {
	match, chain, _ := sc.find(fr)
	sc.nat.share(chain, join(match, saying(sc.service.Name), sc.target(fr)))
}

// target is what follows -d in the rule that finds a frontend.
func (sc *serviceCompiler) target(fr *dataplane.Frontend) string {
	pool := ignore
	if len(fr.Pool.Targets) != 0 {
		pool = jump(sc.pool(fr, &fr.Pool, fr.Masquerade))
	}
	if fr.Local != nil {
		pool = sc.targetByOrigin(fr, pool)
	}
	if fr.Sources == nil {
		return pool
	}
	chain := sc.hashed('S', sc.service.Name, fr.Key().String())
	sc.nat.own[chain] = append(sc.bySource(fr, pool), ignore)
	return jump(chain)
}

// targetByOrigin tells what comes from outside from what does not.
func (sc *serviceCompiler) targetByOrigin(fr *dataplane.Frontend, inside string) string {
	outside := ignore
	if len(fr.Local.Targets) != 0 {
		outside = jump(sc.pool(fr, fr.Local, dataplane.Never))
	}
	chain := sc.hashed('F', sc.service.Name, fr.Key().String())
	sc.nat.own[chain] = append(sc.inside("", inside), join(outside))
	return jump(chain)
}

// inside is rules for what comes from this node and from the cluster.
func (sc *serviceCompiler) inside(protocol, target string) []rule {
	return append([]rule{join(protocol, "-m addrtype --src-type LOCAL", target)},
		sc.ifCluster(sc.family, "-s", string(join(protocol, target)))...)
}

// bySource is a rule for each prefix that may use a frontend.
func (sc *serviceCompiler) bySource(fr *dataplane.Frontend, target string) []rule {
	var rules []rule
	for _, p := range fr.Sources {
		rules = append(rules, join(narrow("-s", p), target))
	}
	return rules
}

// pool is the chain that sends to one of the targets of a pool.
func (sc *serviceCompiler) pool(fr *dataplane.Frontend, p *dataplane.Pool, m dataplane.Masquerade) string {
	what := fmt.Sprint(fr.Protocol, m, fr.Affinity, p.Targets)
	if chain, ok := sc.pools[what]; ok {
		return chain
	}
	role := "cluster"
	if p == fr.Local {
		role = "local"
	}
	chain := sc.hashed('P', sc.service.Name, fr.Key().String(), role)
	sc.pools[what] = chain
	rules := []rule{join(setMark("CONNMARK", sc.ConnMark))}
	if m == dataplane.Always {
		rules = append(rules, join(setMark("MARK", sc.MarkAlways)))
	}
	sc.nat.own[chain] = append(rules, sc.spread(chain, fr, p, m)...)
	return chain
}

// spread sends a client to the target that it is remembered for, or else to one at random.
func (sc *serviceCompiler) spread(pool string, fr *dataplane.Frontend, p *dataplane.Pool, m dataplane.Masquerade) []rule {
	if len(p.Targets) == 1 {
		return sc.send(fr, p.Targets[0], m)
	}
	var known, random []rule
	for i, t := range p.Targets {
		chain := sc.hashed('T', pool, t.IP.String(), fmt.Sprint(t.Port))
		sc.nat.own[chain] = sc.send(fr, t, m)
		if fr.Affinity != 0 {
			known = append(known, join(sc.family.remembered(sc.list(fr, t), fr.Affinity), jump(chain)))
		}
		chance := ""
		if left := len(p.Targets) - i; left > 1 {
			chance = oneOf(left)
		}
		random = append(random, join(chance, jump(chain)))
	}
	return append(known, random...)
}

// send is the rules that send to a target.
func (sc *serviceCompiler) send(fr *dataplane.Frontend, t dataplane.Target, m dataplane.Masquerade) []rule {
	rules := sc.masqueradeFor(t, m)
	protocol, remember := "", ""
	if t.Port != 0 {
		protocol = "-p " + fr.Protocol.String()
	}
	if fr.Affinity != 0 {
		remember = sc.family.remember(sc.list(fr, t))
	}
	return append(rules, join(protocol, remember, dnat(t.IP, t.Port)))
}

// masqueradeFor marks what is to be masqueraded on its way to a target. With Always the pool has done it.
func (sc *serviceCompiler) masqueradeFor(t dataplane.Target, m dataplane.Masquerade) []rule {
	// A hairpin: the target would answer itself without asking us.
	hairpin := join(fromHost(t.IP), setMark("MARK", sc.MarkAlways))
	switch {
	case m == dataplane.Always:
		return nil
	case m == dataplane.Remote && !t.Local:
		return []rule{join(setMark("MARK", sc.MarkAlways))}
	case m == dataplane.NonLocal && !t.Local:
		return []rule{join(jump(sc.base(offCluster))), hairpin}
	default:
		return []rule{hairpin}
	}
}

// list is the name of the list of clients that a target is remembered for: one for all frontends that lead to it, as a
// client that knows a Service by two addresses is still one client.
func (sc *serviceCompiler) list(fr *dataplane.Frontend, t dataplane.Target) string {
	return sc.hashed('A', sc.service.Name, fr.Protocol.String(), netip.AddrPortFrom(t.IP, t.Port).String())
}

// refuse writes the rules of the table filter, for packets that were found and not redirected.
func (sc *serviceCompiler) refuse(fr *dataplane.Frontend) {
	match, _, chain := sc.find(fr)
	actions := sc.actions(fr) // what happens to those whom Sources admits
	switch {
	case fr.Sources == nil && len(actions) == 0:
	case fr.Sources != nil && len(actions) == 0:
		sc.filter.share(chain, join(match, saying(sc.service.Name), drop))
	default:
		sc.filter.share(chain, join(match, saying(sc.service.Name), jump(sc.refusal(fr, actions))))
	}
}

// actions are what happens to packets for the empty pools of a frontend. Those for a pool with targets were redirected
// and never come here.
func (sc *serviceCompiler) actions(fr *dataplane.Frontend) []rule {
	var rules []rule
	if fr.Local == nil {
		for _, a := range sc.action(fr, &fr.Pool) {
			rules = append(rules, join(a.protocol, a.target))
		}
		return rules
	}
	for _, a := range sc.action(fr, &fr.Pool) {
		rules = append(rules, sc.inside(a.protocol, a.target)...)
	}
	for _, a := range sc.action(fr, fr.Local) {
		rules = append(rules, join(a.protocol, a.target))
	}
	return rules
}

const drop = "-j DROP"

// refusal is a chain of the frontend's own with the actions, those for Sources first told from the others.
func (sc *serviceCompiler) refusal(fr *dataplane.Frontend, actions []rule) string {
	chain := sc.hashed('R', sc.service.Name, fr.Key().String())
	sc.filter.own[chain] = actions
	if fr.Sources == nil {
		return chain
	}
	admitted := chain
	chain = sc.hashed('Q', sc.service.Name, fr.Key().String())
	sc.filter.own[chain] = append(sc.bySource(fr, jump(admitted)), drop)
	return chain
}

// action is a target for packets of a protocol, or of any.
type action struct{ protocol, target string }

// action is what happens to packets for an empty pool; nothing when there are targets.
func (sc *serviceCompiler) action(fr *dataplane.Frontend, p *dataplane.Pool) []action {
	reset, unreachable := action{"-p tcp", "-j REJECT --reject-with tcp-reset"}, action{"", sc.family.reject()}
	switch {
	case len(p.Targets) != 0:
		return nil
	case p.Empty == dataplane.Drop:
		return []action{{"", drop}}
	case fr.Protocol == dataplane.TCP:
		return []action{reset}
	case fr.Protocol == dataplane.Any:
		return []action{reset, unreachable}
	default:
		return []action{unreachable}
	}
}
