// SPDX-License-Identifier: Apache-2.0

package flagset

import (
	"os"
	"strings"
)

// NodeName binds p to --node-name, by default the host's name in the form in which kubelet registers a node: lower
// case, without blanks around.
func NodeName(flags Binder, p *string) {
	host, _ := os.Hostname() // without a name, the flag has no default
	String(flags, p, "node-name", strings.ToLower(strings.TrimSpace(host)), "`name` of the node whose view to ask for")
}
