// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// answerTimeout bounds waiting for answers of the kernel, which has them when it has the question.
const answerTimeout = 10 * time.Second

// Refused tells which of the services, by name, the kernel would refuse in an empty table, and changes nothing: it makes
// the transaction of a Replace, in a table of another name, with a last message that cannot succeed. The kernel looks at
// every message also when it has refused one before, and answers each that it refuses. The error says that it refuses
// what does not belong to a service, or cannot be asked.
func (w *Writer) Refused(_ context.Context, services []*dataplane.Service) ([]string, error) {
	t := w.rehearsal(services)
	batch, err := t.messages()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	refused, err := rehearse(batch, t.count-1)
	if err != nil {
		return nil, fmt.Errorf("nftables: asking what is refused: %w", err)
	}
	names := map[string]bool{}
	var others error
	for message, errno := range refused {
		if name := t.owners[message]; name != "" {
			names[name] = true
		} else {
			others = errno
		}
	}
	if len(names) == 0 && others != nil {
		return nil, fmt.Errorf("nftables: what services share is refused: %w", others)
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// rehearsal is a transaction that fails, and knows which messages are of which service.
type rehearsal struct {
	*transaction
	owners map[int]string // by the number of the message, from 1
}

// of has the messages that write makes be those of a service.
func (r *rehearsal) of(name string, write func()) {
	before := r.count
	write()
	for i := before; i < r.count; i++ {
		r.owners[i+1] = name
	}
}

func (w *Writer) rehearsal(services []*dataplane.Service) *rehearsal {
	r := &rehearsal{begin(w.opts.Owner + "-rehearsal"), map[int]string{}}
	type act struct {
		name string
		*delta
		add elementLists
	}
	newAct := func(name string) act {
		add := elementLists{}
		return act{name, newDelta(w.opts, func(e *element) { add.add(e, false) }, nil), add}
	}
	all := newAct("")
	acts := []act{all}
	for _, s := range services {
		a := newAct(s.Name)
		a.service(nil, s)
		all.uses.add(a.uses)
		maps.Copy(all.common, a.common)
		acts = append(acts, a)
	}
	all.finish(newUses())

	r.addTable()
	r.addLayout(w.layout)
	for _, step := range []func(a act){
		func(a act) {
			for _, s := range a.addSets {
				r.addAffinitySet(s)
			}
			for _, name := range a.newChains {
				r.addChain(name)
			}
		},
		func(a act) {
			for _, c := range a.rules {
				r.addRules(c.chain, c.comment)
			}
			r.eachElements(unix.NFT_MSG_NEWSETELEM, w.layout, a.add)
		},
	} {
		for _, a := range acts {
			r.of(a.name, func() { step(a) })
		}
	}
	r.message(unix.NFT_MSG_DELTABLE, 0) // which is not there
	r.text(unix.NFTA_TABLE_NAME, w.opts.Owner+"-nowhere")
	return r
}

// rehearse sends a batch whose message number last fails, and returns the errors of those before it, by their number.
func rehearse(batch []byte, last int) (map[int]error, error) {
	const length, sequence = 0, 8
	for i, at := 1, 0; at < len(batch); i++ {
		binary.NativeEndian.PutUint32(batch[at+sequence:], uint32(i))
		at += int(binary.NativeEndian.Uint32(batch[at+length:]))
	}
	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	// Answers need not repeat the questions.
	if err := errors.Join(c.SetOption(netlink.CapAcknowledge, true), c.SetDeadline(time.Now().Add(answerTimeout))); err != nil {
		return nil, err
	}
	if err := post(c, batch); err != nil {
		return nil, err
	}
	refused := map[int]error{}
	for {
		numbers, errnos, err := answers(c)
		if err != nil {
			return nil, err
		}
		for i, number := range numbers {
			if number == last {
				return refused, nil
			}
			refused[number] = errnos[i]
		}
	}
}

// answers reads some of the answers to messages: their numbers and errors.
func answers(c *netlink.Conn) (numbers []int, errs []error, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	buffer := make([]byte, 64<<10)
	var n int
	var received error
	err = raw.Read(func(fd uintptr) bool {
		n, _, received = unix.Recvfrom(int(fd), buffer, 0)
		return !errors.Is(received, unix.EAGAIN)
	})
	if err = errors.Join(err, received); err != nil {
		return nil, nil, err
	}
	for rest := buffer[:n]; len(rest) >= unix.NLMSG_HDRLEN+4; {
		size := int(binary.NativeEndian.Uint32(rest))
		if size < unix.NLMSG_HDRLEN+4 || size > len(rest) {
			break
		}
		if binary.NativeEndian.Uint16(rest[4:]) == unix.NLMSG_ERROR {
			numbers = append(numbers, int(binary.NativeEndian.Uint32(rest[8:])))
			errs = append(errs, unix.Errno(-int32(binary.NativeEndian.Uint32(rest[unix.NLMSG_HDRLEN:]))))
		}
		rest = rest[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(rest)):]
	}
	return numbers, errs, nil
}
