// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// cursor reads the fields of a protobuf message in place: a thousand watchers live in this process, and what is to be
// measured is the server.
type cursor struct{ rest []byte }

var errWire = errors.New("malformed message")

// next returns the next field: its number, and its value, of which one is filled. The number is 0 at the end.
func (c *cursor) next() (field protowire.Number, number uint64, body []byte, err error) {
	if len(c.rest) == 0 {
		return 0, 0, nil, nil
	}
	field, kind, n := protowire.ConsumeTag(c.rest)
	if n < 0 {
		return 0, 0, nil, errWire
	}
	c.rest = c.rest[n:]
	switch kind {
	case protowire.VarintType:
		number, n = protowire.ConsumeVarint(c.rest)
	case protowire.BytesType:
		body, n = protowire.ConsumeBytes(c.rest)
	default:
		n = -1
	}
	if n < 0 {
		return 0, 0, nil, errWire
	}
	c.rest = c.rest[n:]
	return field, number, body, nil
}

// endpointValue is what a localv1.Endpoint of this benchmark says.
type endpointValue struct {
	address            uint32
	port               int
	local              bool
	internal, external bool
}

func parseEndpoint(b []byte) (v endpointValue, err error) {
	c := cursor{b}
	for {
		field, number, body, err := c.next()
		if err != nil || field == 0 {
			return v, err
		}
		switch field {
		case 2: // IPs
			err = v.parseAddress(body)
		case 3:
			v.local = number != 0
		case 4: // PortOverrides
			v.port, err = parsePort(body)
		case 5: // Scopes
			err = v.parseScopes(body)
		}
		if err != nil {
			return v, err
		}
	}
}

// parseAddress reads an IPSet that holds one address of 10.0.0.0/8.
func (v *endpointValue) parseAddress(b []byte) error {
	c := cursor{b}
	field, _, text, err := c.next()
	rest, ok := bytes.CutPrefix(text, []byte("10."))
	if err != nil || field != 1 || !ok || len(c.rest) != 0 {
		return errWire
	}
	for range 2 {
		part, after, found := bytes.Cut(rest, []byte("."))
		if !found {
			return errWire
		}
		v.address = v.address<<8 | uint32(decimal(part))
		rest = after
	}
	v.address = v.address<<8 | uint32(decimal(rest))
	return nil
}

func parsePort(b []byte) (port int, err error) {
	c := cursor{b}
	for {
		field, number, _, err := c.next()
		if err != nil || field == 0 {
			return port, err
		}
		if field == 2 {
			port = int(number)
		}
	}
}

func (v *endpointValue) parseScopes(b []byte) error {
	c := cursor{b}
	for {
		field, number, _, err := c.next()
		if err != nil || field == 0 {
			return err
		}
		switch field {
		case 1:
			v.internal = number != 0
		case 2:
			v.external = number != 0
		}
	}
}

// servicePath reads namespace/svc-NUMBER and what follows a second slash.
func servicePath(path []byte) (service int, endpoint []byte, err error) {
	rest, ok := bytes.CutPrefix(path, []byte(namespace+"/svc-"))
	if !ok {
		return 0, nil, errors.New("unknown path " + strconv.Quote(string(path)))
	}
	name, endpoint, _ := bytes.Cut(rest, []byte("/"))
	return decimal(name), endpoint, nil
}

func decimal(b []byte) (n int) {
	for _, c := range b {
		n = n*10 + int(c-'0')
	}
	return n
}
