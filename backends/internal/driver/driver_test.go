// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestForwarding(t *testing.T) {
	const v4, v6 = "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"
	tests := map[string]struct {
		is     map[string]string
		set    bool
		only4  bool // the node has no IPv6 address
		wants  map[string]string
		faults []string
	}{
		"on":           {is: map[string]string{v4: "1", v6: "1"}, wants: map[string]string{v4: "1", v6: "1"}},
		"off":          {is: map[string]string{v4: "0", v6: "0"}, wants: map[string]string{v4: "0", v6: "0"}, faults: []string{v4 + " is 0", v6 + " is 0", "--set-sysctls"}},
		"no address":   {is: map[string]string{v4: "1", v6: "0"}, only4: true, wants: map[string]string{v4: "1", v6: "0"}},
		"no IPv4":      {is: map[string]string{v4: "0", v6: "0"}, only4: true, wants: map[string]string{v4: "0", v6: "0"}, faults: []string{v4 + " is 0"}},
		"set":          {is: map[string]string{v4: "0", v6: "0"}, set: true, wants: map[string]string{v4: "1", v6: "1"}},
		"without IPv6": {is: map[string]string{v4: "0"}, set: true, wants: map[string]string{v4: "1"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := sysctls(t.TempDir())
			for key, value := range test.is {
				require.NoError(t, os.MkdirAll(filepath.Dir(dir.path(key)), 0o700))
				require.NoError(t, os.WriteFile(dir.path(key), []byte(value+"\n"), 0o600))
			}
			err := dir.ensureForwarding(test.set, !test.only4)
			if test.faults == nil {
				require.NoError(t, err)
			}
			for _, fault := range test.faults {
				require.ErrorContains(t, err, fault)
			}
			for key, want := range test.wants {
				got, err := dir.get(key)
				require.NoError(t, err)
				require.Equal(t, want, got[:1], key)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	parse := func(args ...string) (*Options, error) {
		o := &Options{}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.BindFlags(flags, IPTables)
		require.NoError(t, flags.Parse(args))
		return o, o.Validate()
	}
	o, err := parse()
	require.NoError(t, err)
	require.Equal(t, IPTables, o.Dataplane)
	_, err = parse("--dataplane=ipvs", "--iptables-flavor=vanilla", "--dry-run", "--cleanup")
	require.ErrorContains(t, err, "--dataplane=ipvs: want iptables or nftables")
	require.ErrorContains(t, err, `iptables flavor "vanilla": want auto, nft or legacy`)
	require.ErrorContains(t, err, "--dry-run, --cleanup: want one of them at most")
}
