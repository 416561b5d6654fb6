// SPDX-License-Identifier: Apache-2.0

package allip

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestConfig(t *testing.T) {
	tests := map[string]struct {
		args   []string
		faults []string
	}{
		"defaults":   {},
		"everything": {args: []string{"--scope=cluster", "--egress-snat", "--cluster-cidrs=10.0.0.0/8,fd00::/8"}},
		"every fault": {
			args: []string{"--scope=globe", "--cluster-cidrs=10.0.0.0,10.0.0.1/8,::ffff:10.0.0.0/104"},
			faults: []string{
				"--scope=globe: want local or cluster", `--cluster-cidrs: "10.0.0.0": want a CIDR`, "--cluster-cidrs: 10.0.0.1/8 has bits beyond its length: did you mean 10.0.0.0/8?",
				"--cluster-cidrs: ::ffff:10.0.0.0/104: write an IPv4 prefix as IPv4",
			},
		},
		"egress":        {args: []string{"--egress-snat"}, faults: []string{"--egress-snat needs --cluster-cidrs"}},
		"an empty list": {args: []string{"--cluster-cidrs="}, faults: []string{"--cluster-cidrs: no prefix given"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var config Config
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			config.BindFlags(flags)
			require.NoError(t, flags.Parse(test.args))
			err := config.Validate()
			if test.faults == nil {
				require.NoError(t, err)
				return
			}
			for _, fault := range test.faults {
				require.ErrorContains(t, err, fault)
			}
		})
	}
}
