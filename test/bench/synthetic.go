// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/kpng/test/e2e/proc"
)

// synthetic is a child process that serves a world out of the store and server of kpng, without an API server.
type synthetic struct {
	*proc.Process
	socket string

	mu      sync.Mutex
	in      *json.Encoder
	closeIn func() error
}

// childFlag is the first argument of a child process.
const childFlag = "serve-synthetic"

// order is what a child is told, one in a line.
type order struct {
	Set  *serviceState `json:",omitempty"`
	Heap bool          `json:",omitempty"`
}

// startSynthetic starts a child that serves a world, and returns when it listens.
func startSynthetic(dir string, services, endpoints int, extra ...string) (*synthetic, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s := &synthetic{socket: filepath.Join(dir, "synthetic"), in: json.NewEncoder(orders), closeIn: orders.Close}
	_ = os.Remove(s.socket)
	args := append([]string{childFlag, s.socket, fmt.Sprint(services), fmt.Sprint(endpoints)}, extra...)
	s.Process, err = proc.Start(proc.Spec{Path: self, Args: args, Stdin: in})
	if err != nil {
		return nil, err
	}
	if err := in.Close(); err != nil {
		return nil, err
	}
	if _, err := s.answer(1, 2*time.Minute); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// apply makes a change: one commit.
func (s *synthetic) apply(state serviceState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in.Encode(order{Set: &state})
}

// heap is what the child's heap holds.
type heap struct {
	Bytes     int            // live, after a collection
	By        map[string]int // by what allocated it
	Key, Wire int            // bytes of an endpoint's key and of its message
}

// heap has the child collect its garbage and asks for the rest. It may be asked for once.
func (s *synthetic) heap() (h heap, err error) {
	if err := s.in.Encode(order{Heap: true}); err != nil {
		return h, err
	}
	text, err := s.answer(2, 2*time.Minute)
	if err != nil {
		return h, err
	}
	return h, json.Unmarshal([]byte(text), &h)
}

// answer waits for a line of the child's output.
func (s *synthetic) answer(line int, limit time.Duration) (string, error) {
	for end := time.Now().Add(limit); time.Now().Before(end) && s.Running(); time.Sleep(5 * time.Millisecond) {
		if lines := strings.Split(s.Stdout.String(), "\n"); len(lines) > line {
			return lines[line-1], nil
		}
	}
	return "", fmt.Errorf("the synthetic server does not answer: %s", s.Stderr.String())
}

// end ends the child.
func (s *synthetic) end() {
	_ = s.closeIn()
	s.Stop(10 * time.Second)
}
