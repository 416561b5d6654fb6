// SPDX-License-Identifier: Apache-2.0

package json

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"

	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/changes"
)

// printer writes states. It holds the text of every service, sorted by namespace/name, so that a change costs the
// rendering of what changed and, but for the format Changes, the writing of everything.
type printer struct {
	out     io.Writer
	output  Output
	service string // print this namespace/name only; empty: all

	texts  []text
	buffer bytes.Buffer
	ended  error // why there is nothing more to print
}

// text is the rendered text of a service.
type text struct {
	service string
	bytes   []byte
}

// print is the callback of a changes.Sink. It ends the client when the output is closed or fails: a state that could not
// be printed is not to be missed silently.
func (p *printer) print(list []changes.Change) error {
	if p.ended == nil {
		p.ended = p.write(list)
	}
	if p.ended != nil {
		return localsink.ErrStop
	}
	return nil
}

// failure is why printing ended, nil when it did not or because nobody reads any more: that is how a pipe ends.
func (p *printer) failure() error {
	if p.ended == nil || errors.Is(p.ended, syscall.EPIPE) || errors.Is(p.ended, io.ErrClosedPipe) {
		return nil
	}
	return fmt.Errorf("cannot print the state: %w", p.ended)
}

func (p *printer) write(list []changes.Change) error {
	p.buffer.Reset()
	var fresh []text
	for _, c := range list {
		service := c.Item.Service.NamespacedName()
		if p.service != "" && p.service != service {
			continue
		}
		rendered, err := render(p.output, c)
		if err != nil {
			return fmt.Errorf("service %s: %w", service, err)
		}
		fresh = append(fresh, text{service, rendered})
	}
	if p.output == Changes {
		for _, t := range fresh {
			p.buffer.Write(t.bytes)
		}
		return p.flush()
	}
	if p.service != "" && len(fresh) == 0 {
		return nil // nothing of what was asked for has changed
	}
	p.texts = merge(p.texts, fresh)
	for _, t := range p.texts {
		p.buffer.Write(t.bytes)
	}
	return p.flush()
}

// merge replaces texts by the fresh ones, and removes those that are empty now. Both are sorted.
func merge(texts, fresh []text) []text {
	byService := func(t text, service string) int { return cmp.Compare(t.service, service) }
	if len(fresh) > 16 { // many at once, as at the start
		merged := make([]text, 0, len(texts)+len(fresh))
		for _, f := range fresh {
			i, found := slices.BinarySearchFunc(texts, f.service, byService)
			merged = append(merged, texts[:i]...)
			if found {
				i++
			}
			texts = texts[i:]
			if f.bytes != nil {
				merged = append(merged, f)
			}
		}
		return append(merged, texts...)
	}
	for _, f := range fresh {
		i, found := slices.BinarySearchFunc(texts, f.service, byService)
		switch {
		case found && f.bytes == nil:
			texts = slices.Delete(texts, i, i+1)
		case found:
			texts[i] = f
		case f.bytes != nil:
			texts = slices.Insert(texts, i, f)
		}
	}
	return texts
}

// flush writes what is in the buffer in one piece.
func (p *printer) flush() error {
	if p.buffer.Len() == 0 {
		return nil
	}
	_, err := p.out.Write(p.buffer.Bytes())
	return err
}
