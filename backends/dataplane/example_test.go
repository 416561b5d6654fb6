// SPDX-License-Identifier: Apache-2.0

//go:build linux

package dataplane_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/kpng/backends/dataplane"
)

// A writer tells what it would write without any privilege.
func ExampleWriter() {
	writer, err := dataplane.NewIPTables(dataplane.Options{Owner: "example"}, dataplane.FlavorAuto)
	if err != nil {
		panic(err)
	}
	text := writer.Text([]*dataplane.Service{{
		Name: "default/web",
		Frontends: []dataplane.Frontend{{
			Kind: dataplane.ExternalIP, IP: netip.MustParseAddr("192.0.2.1"), Protocol: dataplane.TCP, Port: 80,
			Pool: dataplane.Pool{Targets: []dataplane.Target{{IP: netip.MustParseAddr("10.244.1.5"), Port: 8080, Local: true}}},
		}},
	}})
	for line := range strings.Lines(text) {
		if _, target, ok := strings.Cut(line, "-j DNAT "); ok {
			fmt.Print(target)
		}
	}
	// Output: --to-destination 10.244.1.5:8080
}

// keep makes the kernel do what it is told, until there is no more.
func keep(ctx context.Context, w dataplane.Writer, first []*dataplane.Service, changes <-chan []dataplane.Change) error {
	if err := w.Replace(ctx, first); err != nil {
		return err
	}
	for some := range changes {
		if err := w.Apply(ctx, some); err != nil {
			return err // the kernel does what it did before
		}
		if _, err := (dataplane.Cleaner{}).Clean(ctx, some); err != nil {
			return err
		}
	}
	return nil
}
