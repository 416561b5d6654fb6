// SPDX-License-Identifier: Apache-2.0

// Package walls holds the rules of the repository: which room may use which (docs/architecture.md), and what must or
// must not stand in a file. A rule that is broken names the file and the way out.
package walls

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "sigs.k8s.io/kpng"

// rooms says which of our own packages each room may import directly (its own always). The longest matching room counts;
// tests are free. A room that is not listed fails the test: say here what it may use.
var rooms = map[string][]string{
	"api":      {},
	"client":   {"api"},
	"callout":  {"api", "client"},
	"backends": {"api", "client"},
	// What programs of others are built on: also how a command of ours starts, logs and ends.
	"backends/dataplane": {"api", "client", "backends/internal", "internal/process", "internal/program"},
	// A lab for tests; backends themselves cannot import it, as they would reach internal through it.
	"backends/internal/dataplane/nstest": {"backends/internal/dataplane", "internal/netlab"},
	"server/dump":                        {"api", "server/store"},
	"server/store":                       {"api"},
	"server/view":                        {"api", "server/store"},
	"server/serve":                       {"api", "server/store", "server/view"},
	"server/source":                      {"api", "server/store"},
	"server/source/api":                  {"api", "client", "server/store"},
	"server/source/kube":                 {"api", "server/store"},
	"server/source/file":                 {"api", "server/dump", "server/store", "server/source/kube"},
	"internal":                           {},
	"internal/localtest":                 {"api"},
	"internal/process":                   {},
	"internal/program":                   {"client", "internal/process"},
	"cmd":                                {"*"},
	"examples":                           {"api", "client"},
	"examples/demo":                      {"api", "client", "internal"},
	"examples/mail":                      {"api", "client", "backends/dataplane"},
	"deploy":                             {"internal"},
	"scripts":                            {},
	"test":                               {"*"},
}

// reach says what a room must not reach, directly or through others: path prefixes, with exceptions.
var reach = []struct {
	why       string
	rooms     []string
	except    []string // of the rooms
	forbidden []string
	allowed   []string // of the forbidden
}{
	{
		why:       "a program that imports the API or the client stays small",
		rooms:     []string{"api", "client", "callout", "backends"},
		except:    []string{"backends/internal/dataplane/nstest"},
		forbidden: []string{"k8s.io/", module + "/server", module + "/internal"},
		// Only backends/dataplane may import these two, see rooms.
		allowed: []string{"k8s.io/klog/", module + "/internal/process", module + "/internal/program"},
	},
	{
		why:       "what a program measures is its own choice",
		rooms:     []string{"api", "client"},
		forbidden: []string{"github.com/prometheus/"},
	},
	{
		why:       "the API is protobuf and gRPC, nothing else",
		rooms:     []string{"api"},
		forbidden: []string{"github.com/", "k8s.io/", "sigs.k8s.io/"},
		allowed:   []string{module + "/api"},
	},
	{
		why:       "the server serves any backend and knows none",
		rooms:     []string{"server"},
		forbidden: []string{module + "/backends", module + "/callout"},
	},
	{
		why:       "Kubernetes types end where state comes in",
		rooms:     []string{""},
		except:    []string{"server/source/kube", "server/source/file", "cmd/kpng", "test"},
		forbidden: []string{"k8s.io/"},
		allowed:   []string{"k8s.io/klog/"},
	},
	{
		why:       "kpng does not need the typed clients of every API group, the dynamic client or Kubernetes itself",
		rooms:     []string{""},
		forbidden: []string{"k8s.io/kubernetes", "k8s.io/client-go/dynamic", "k8s.io/apiextensions-apiserver", "k8s.io/component-base"},
	},
}

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// list returns the packages of the module as the go command sees them, without their tests.
func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Fatalf("go list: %v\n%s", err, exit.Stderr)
	}
	require.NoError(t, err)
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		pkgs = append(pkgs, p)
	}
	require.NotEmpty(t, pkgs)
	return pkgs
}

func TestRoomsUseOnlyWhatTheyMay(t *testing.T) {
	for _, p := range list(t) {
		folder := folderOf(p.ImportPath)
		room, ok := roomOf(folder)
		if !ok {
			t.Errorf("%s: stands in no room; name its room, and what it may use, in test/walls", folder)
			continue
		}
		may := append([]string{room}, rooms[room]...)
		for _, imported := range p.Imports {
			if other := folderOf(imported); other != "" && !slices.ContainsFunc(may, func(m string) bool { return m == "*" || within(other, m) }) {
				t.Errorf("%s imports %s; %s may use only %v", folder, other, room, may)
			}
		}
	}
}

func TestNothingReachesThroughAWall(t *testing.T) {
	pkgs := list(t)
	for _, wall := range reach {
		for _, p := range pkgs {
			folder := folderOf(p.ImportPath)
			in := func(room string) bool { return within(folder, room) }
			if !slices.ContainsFunc(wall.rooms, in) || slices.ContainsFunc(wall.except, in) {
				continue
			}
			for _, dep := range p.Deps {
				prefix := func(s string) bool { return strings.HasPrefix(dep, s) }
				if slices.ContainsFunc(wall.forbidden, prefix) && !slices.ContainsFunc(wall.allowed, prefix) {
					t.Errorf("%s reaches %s, but %s (see it with: go list -deps ./%s)", folder, dep, wall.why, folder)
				}
			}
		}
	}
}

// TestWallsWouldBeSeen checks the checks: a rule that matches nothing holds nothing.
func TestWallsWouldBeSeen(t *testing.T) {
	room, ok := roomOf("server/source/kube/translate")
	require.True(t, ok)
	require.Equal(t, "server/source/kube", room)
	_, ok = roomOf("nowhere")
	require.False(t, ok)
	require.True(t, within("client/localsink", "client"))
	require.False(t, within("clients", "client"))
	require.Equal(t, "api/localv1", folderOf(module+"/api/localv1"))
	require.Empty(t, folderOf("k8s.io/api/core/v1"))

	var folders []string
	for _, p := range list(t) {
		folders = append(folders, folderOf(p.ImportPath))
	}
	for _, wall := range reach {
		for _, room := range wall.rooms {
			require.True(t, room == "backends" || slices.ContainsFunc(folders, func(f string) bool { return within(f, room) }), "no package in %q", room)
		}
	}
}

// folderOf is the folder of one of our packages, "" for another's.
func folderOf(importPath string) string {
	if importPath == module {
		return "."
	}
	folder, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return folder
}

// within says whether a folder is, or is below, another; every folder is within "".
func within(folder, other string) bool {
	return other == "" || folder == other || strings.HasPrefix(folder, other+"/")
}

func roomOf(folder string) (room string, ok bool) {
	for name := range rooms {
		if within(folder, name) && len(name) > len(room) {
			room, ok = name, true
		}
	}
	return room, ok
}
