// SPDX-License-Identifier: Apache-2.0

package backendcmd_test

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink"
)

type cmd struct{}

func (cmd) BindFlags(*pflag.FlagSet) {}
func (cmd) Sink() localsink.Sink     { return nil }

func TestRegister(t *testing.T) {
	require.Empty(t, backendcmd.Registered())
	newCmd := func() backendcmd.Cmd { return cmd{} }
	backendcmd.Register("to-b", newCmd)
	backendcmd.Register("to-a", newCmd)
	registered := backendcmd.Registered()
	require.Len(t, registered, 2)
	require.Equal(t, "to-b", registered[0].Use)
	require.Equal(t, cmd{}, registered[1].New())
	registered[0].Use = "changed"
	require.Equal(t, "to-b", backendcmd.Registered()[0].Use)
	require.PanicsWithValue(t, `backendcmd: "to-a" is registered twice`, func() { backendcmd.Register("to-a", newCmd) })
}
