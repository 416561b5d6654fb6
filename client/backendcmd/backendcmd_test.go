// SPDX-License-Identifier: Apache-2.0

package backendcmd_test

import (
	"fmt"
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
	before := len(backendcmd.Registered()) // there is one registry for a process, and -count repeats a test in it
	a, b := fmt.Sprint("to-a", before), fmt.Sprint("to-b", before)
	newCmd := func() backendcmd.Cmd { return cmd{} }
	backendcmd.Register(b, newCmd)
	backendcmd.Register(a, newCmd)
	registered := backendcmd.Registered()[before:]
	require.Len(t, registered, 2)
	require.Equal(t, []string{b, a}, []string{registered[0].Use, registered[1].Use})
	require.Equal(t, cmd{}, registered[1].New())
	registered[0].Use = "changed"
	require.Equal(t, b, backendcmd.Registered()[before].Use)
	require.PanicsWithValue(t, fmt.Sprintf("backendcmd: %q is registered twice", a), func() { backendcmd.Register(a, newCmd) })
}
