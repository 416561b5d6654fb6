// SPDX-License-Identifier: Apache-2.0

// Package truth has only tests: what kpng does with packets to Services, beside what kube-proxy does with them.
//
// One real API server has the Services and EndpointSlices of all cases. Each proxy under test, kpng with each of its
// dataplanes and kube-proxy in two of its modes, runs as the real program on node n1 of a network of its own (package
// nstest) and serves them. Then the same table of questions is asked in each network: from where, to which address, and
// what must come of it: the pod that answers with the source that it saw, a refusal, or silence. Where kube-proxy is meant to
// differ, the row says so with a reason; docs/kube-proxy.md tells of each.
package truth
