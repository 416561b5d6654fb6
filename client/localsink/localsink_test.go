// SPDX-License-Identifier: Apache-2.0

package localsink_test

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/client/localsink"
)

func TestConfig(t *testing.T) {
	host, err := os.Hostname()
	require.NoError(t, err)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	a, b := &localsink.Config{}, &localsink.Config{}
	a.BindFlags(flags)
	b.BindFlags(flags) // two parts of a program may both want it
	require.Equal(t, strings.ToLower(host), a.NodeName)
	require.NoError(t, flags.Parse([]string{"--node-name=n"}))
	for _, c := range []*localsink.Config{a, b} {
		node, err := c.WaitRequest()
		require.NoError(t, err)
		require.Equal(t, "n", node)
	}
	node, err := (*localsink.Config)(nil).WaitRequest()
	require.NoError(t, err)
	require.Empty(t, node)
}
