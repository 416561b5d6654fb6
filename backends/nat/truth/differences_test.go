// SPDX-License-Identifier: Apache-2.0

//go:build linux

package truth

// reason is why kube-proxy and kpng differ, by a heading of docs/kube-proxy.md.
type reason string

const (
	hidesClients  reason = "kube-proxy hides clients that kpng lets pods see"
	halfRanges    reason = "A family without a source range"
	onLoopback    reason = "Node ports on the loopback"
	nodeUnrefused reason = "The node itself and addresses without endpoints"
	perFamily     reason = "The node's health page"
	keepsFlows    reason = "Flows of UDP and SCTP that have nowhere to go"
	unknownPort   reason = "Ports that a cluster IP does not have"
)
