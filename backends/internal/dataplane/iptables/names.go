// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
	"unicode/utf8"
)

// maxChainName is how long a chain's name may be: XT_EXTENSION_MAXNAMELEN of the kernel, less its final NUL.
const maxChainName = 28

// maxComment is what we use of the 255 bytes that xt_comment has: a comment is repeated in many rules.
const maxComment = 100

// names gives the chains of one owner their names: a prefix that is the owner's, and for a Service's chains a letter
// for what they do and a hash of what they are for. So no name from the API is ever in the name of a chain, and the
// same chain has the same name in the next run.
type names struct {
	// prefix is such as KPNG-ALLIP_. An owner's name has no underscore, so none begins with the prefix of another.
	prefix string
}

func newNames(owner string) names { return names{prefix: strings.ToUpper(owner) + "_"} }

// base is the name of one of the owner's fixed chains.
func (n names) base(what string) string { return n.prefix + what }

// hashed is the name of something of one Service, with as many bits of the hash as fit: 50 with the longest owner.
func (n names) hashed(kind byte, parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0}) // names of the API hold none, so no two lists of parts are the same bytes
	}
	prefix := n.prefix + string(kind) + "_"
	text := base32.StdEncoding.EncodeToString(h.Sum(nil))
	return prefix + text[:maxChainName-len(prefix)]
}

// owns says whether a chain is one of the owner's.
func (n names) owns(chain string) bool { return strings.HasPrefix(chain, n.prefix) }

// comment makes text safe to stand in a rule between double quotes: nothing that iptables-restore would take for the
// end of it, and no more than fits.
func comment(text string) string {
	var b strings.Builder
	for _, r := range text {
		if b.Len() >= maxComment {
			b.WriteString("...")
			break
		}
		switch {
		case r == utf8.RuneError, r <= ' ', r >= 0x7f, strings.ContainsRune("\"'`\\$", r):
			b.WriteByte('?')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
