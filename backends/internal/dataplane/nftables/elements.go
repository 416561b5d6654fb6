// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// element of one of the table's sets and maps. Its key is as much of key as is set, and then the index, if the map has one.
type element struct {
	set     string
	key     dataplane.Key
	index   int    // of a target among those of its frontend, in maps of targets
	indexed bool   // the map is one of targets
	verdict string // the chain to go on in
	to      place  // where to, or for egress from where
	twice   bool   // the address is the key two times
	comment string
}

func (e *element) text() string {
	var key []string
	if !e.key.IP.IsUnspecified() {
		key = append(key, e.key.IP.String())
	}
	if e.key.Protocol != 0 {
		key = append(key, e.key.Protocol.String(), strconv.Itoa(int(e.key.Port)))
	}
	if e.twice {
		key = append(key, key...)
	}
	if e.indexed {
		key = append(key, strconv.Itoa(e.index))
	}
	text := strings.Join(key, " . ")
	if e.comment != "" {
		text += fmt.Sprintf(" comment %q", e.comment)
	}
	switch {
	case e.verdict != "":
		text += " : goto " + e.verdict
	case e.to.ip.IsValid():
		text += " : " + e.to.text()
	}
	return text
}

// encodeKey writes the key as the kernel has it: each part fills whole registers of 4 bytes.
func (e *element) encodeKey(a *attributes) {
	if e.key.IP.IsValid() && !e.key.IP.IsUnspecified() {
		a.address(e.key.IP)
		if e.twice {
			a.address(e.key.IP)
		}
	}
	if e.key.Protocol != 0 {
		*a = append(*a, byte(e.key.Protocol), 0, 0, 0, byte(e.key.Port>>8), byte(e.key.Port), 0, 0)
	}
	if e.indexed {
		*a = binary.NativeEndian.AppendUint32(*a, uint32(e.index)) // as numgen draws it
	}
}

// encode the element, or only its key, as an item of a list.
func (e *element) encode(a *attributes, keyOnly bool) {
	item := a.nest(unix.NFTA_LIST_ELEM)
	key := a.nest(unix.NFTA_SET_ELEM_KEY)
	value := a.open(unix.NFTA_DATA_VALUE)
	e.encodeKey(a)
	a.close(value)
	a.close(key)
	if !keyOnly {
		e.encodeData(a)
		if e.comment != "" {
			userData := a.open(unix.NFTA_SET_ELEM_USERDATA)
			*a = append(*a, 0, byte(len(e.comment)+1)) // type and length in nft's own encoding: a comment
			*a = append(append(*a, e.comment...), 0)
			a.close(userData)
		}
	}
	a.close(item)
}

func (e *element) encodeData(a *attributes) {
	data := 0
	switch {
	case e.verdict != "":
		data = a.nest(unix.NFTA_SET_ELEM_DATA)
		encodeGoto(a, e.verdict)
	case e.to.ip.IsValid():
		data = a.nest(unix.NFTA_SET_ELEM_DATA)
		value := a.open(unix.NFTA_DATA_VALUE)
		a.address(e.to.ip)
		if e.to.port != 0 {
			*a = append(*a, byte(e.to.port>>8), byte(e.to.port), 0, 0)
		}
		a.close(value)
	default:
		return
	}
	a.close(data)
}

func encodeGoto(a *attributes, chain string) {
	verdict := a.nest(unix.NFTA_DATA_VERDICT)
	a.number(unix.NFTA_VERDICT_CODE, gotoCode)
	a.text(unix.NFTA_VERDICT_CHAIN, chain)
	a.close(verdict)
}

// gotoCode is NFT_GOTO, which is negative.
const gotoCode = 1<<32 - 4

// maxList is well under the 64 KiB that an attribute can have, by more than an element.
const maxList = 60 << 10

// elementList is encoded elements of one set, cut into lists that fit a message.
type elementList struct {
	bytes attributes
	cuts  []int
	count int
}

// next is where the next element is written.
func (l *elementList) next() *attributes {
	begin := 0
	if n := len(l.cuts); n > 0 {
		begin = l.cuts[n-1]
	}
	if len(l.bytes)-begin > maxList {
		l.cuts = append(l.cuts, len(l.bytes))
	}
	l.count++
	return &l.bytes
}

// elementLists are by set.
type elementLists map[string]*elementList

func (l elementLists) add(e *element, keyOnly bool) {
	list := l[e.set]
	if list == nil {
		list = &elementList{}
		l[e.set] = list
	}
	e.encode(list.next(), keyOnly)
}
