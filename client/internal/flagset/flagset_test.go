// SPDX-License-Identifier: Apache-2.0

package flagset

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestTwoVariablesFollowOneFlag(t *testing.T) {
	type set struct {
		Binder
		parse func([]string) error
	}
	for name, newSet := range map[string]func() set{
		"pflag": func() set {
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			return set{fs, fs.Parse}
		},
		"flag": func() set {
			fs := flag.NewFlagSet("", flag.ContinueOnError)
			return set{fs, fs.Parse}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := newSet()
			// The set as the concrete type, as callers hand it over.
			binder := fs.Binder
			var node1, node2 string
			var d1, d2 time.Duration
			var i1, i2 int
			var b1, b2 bool
			NodeName(binder, &node1)
			NodeName(binder, &node2)
			Duration(binder, &d1, "d", time.Second, "")
			Duration(binder, &d2, "d", time.Minute, "")
			Int(binder, &i1, "i", 1, "")
			Int(binder, &i2, "i", 2, "")
			Bool(binder, &b1, "b", false, "")
			Bool(binder, &b2, "b", false, "")

			host, err := os.Hostname()
			require.NoError(t, err)
			require.Equal(t, strings.ToLower(host), node1)
			require.Equal(t, node1, node2)
			require.Equal(t, time.Minute, d2, "a default of its own")

			require.NoError(t, fs.parse([]string{"--node-name=n", "--d=5s", "--i", "7", "--b"}))
			require.Equal(t, []any{"n", "n", 5 * time.Second, 5 * time.Second, 7, 7, true, true}, []any{node1, node2, d1, d2, i1, i2, b1, b2})
			require.Error(t, fs.parse([]string{"--i=x"}))
		})
	}
}

type noBool struct{ Binder }

func TestBoolIsLeftOutWhereUnknown(t *testing.T) {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	b := false
	Bool(noBool{fs}, &b, "b", true, "")
	require.True(t, b)
	require.Nil(t, fs.Lookup("b"))
}
