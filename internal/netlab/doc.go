// SPDX-License-Identifier: Apache-2.0

// Package netlab builds small networks out of Linux network namespaces, in well under a second and
// without running any program: hosts, cables between them, routers, servers that say who they are, and
// probes that report who answered. Tests of dataplanes send real packets in it; the demo shows it to people.
//
// A lab's life:
//
//  1. [New] (or [ForTest], which ties the lab to a test) makes an empty lab. Nothing global is touched.
//  2. [Lab.Host] makes a namespace, [Lab.Link] lays a cable, [Host.Route] and [Host.Sysctl] configure;
//     [Lab.Cluster] does all of it for the usual picture: a client, nodes, pods on each, both IP families.
//     These builders do not return errors. The first error is kept, later calls do nothing, and [Lab.Err]
//     tells it; a lab made by ForTest fails its test at once instead.
//  3. [Host.Do], [Host.Command], [Host.Dial] and [Host.Listen] act inside a host; [Host.Serve] starts servers that
//     answer with the host's name and the client address they saw; [Host.Probe] asks such a server, over
//     TCP, UDP or ICMP echo.
//  4. [Lab.Close] ends it all. Should the process die without it, even by kill -9, the kernel does the same.
//
// Nothing is ever left behind because nothing is ever named: a namespace here is held by one thread of
// this process and an open file, both of which end with the process; interfaces, rules, sockets and routes live
// inside it; and programs started by [Host.Command] are killed by the kernel when that thread ends. So
// labs also need no unique names, and any number of them run in parallel. To look inside one while it lives:
//
//	nsenter --net=$(what Host.Path returned) sh
//
// A test of a dataplane, with nothing left out:
//
//	func TestMain(m *testing.M) {
//		if err := netlab.EnsurePrivilege(); err != nil {
//			fmt.Fprintln(os.Stderr, err) // and the tests are skipped
//		}
//		os.Exit(m.Run())
//	}
//
//	func TestRedirect(t *testing.T) {
//		t.Parallel()
//		c := netlab.ForTest(t).Cluster()
//		node, pod := c.Nodes[0], c.Nodes[0].Pods[0]
//		pod.Serve(6000)
//		vip := netip.MustParseAddrPort("10.0.0.55:6000")
//		c.Client.Route(netip.PrefixFrom(vip.Addr(), 32), node.Addr(false), "")
//
//		program(t, node.Command) // or node.Do, for sockets to the kernel
//
//		a, err := c.Client.Probe(t.Context(), netlab.Probe{Network: "tcp", To: vip})
//		require.NoError(t, err)
//		require.Equal(t, pod.Name, a.Host)
//		require.Equal(t, c.Client.Addr(false), a.Client.Addr()) // not masqueraded
//	}
//
// Namespaces are a property of threads, which Go hides. The rules that follow from this are on [Host.Do].
//
// It needs root, or a kernel that allows user namespaces: see [EnsurePrivilege].
package netlab
