// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFamilyKnowsTheLab(t *testing.T) {
	t.Parallel()
	l := New(t, 3)
	for _, f := range Families {
		for name := range l.hosts {
			require.Equal(t, l.Addr(name, f.V6), f.Addr(name), name)
		}
	}
	for i, f := range Families {
		require.True(t, ServiceNets[i].Contains(f.VIP(1)))
	}
}
