// SPDX-License-Identifier: Apache-2.0

package walls

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// notOurs are the folders that git ignores.
var notOurs = []string{".git", ".cache", "bin", "dist"}

// eachFile calls see with every text file of the repository, by its path from the root.
func eachFile(t *testing.T, see func(path string, content []byte)) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir() && slices.Contains(notOurs, name):
			return fs.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Contains(content[:min(len(content), 512)], []byte{0}) {
			see(filepath.ToSlash(name), content)
			n++
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, n, 20, "the repository's files")
}

func TestGoFilesNameTheirLicense(t *testing.T) {
	const spdx = "// SPDX-License-Identifier: Apache-2.0\n"
	eachFile(t, func(path string, content []byte) {
		if strings.HasSuffix(path, ".go") && !bytes.HasPrefix(content, []byte(spdx)) {
			t.Errorf("%s: the first line must be %q", path, strings.TrimSpace(spdx))
		}
	})
	license, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	require.NoError(t, err)
	require.Contains(t, string(license), "Apache License")
	require.Contains(t, string(license), "Version 2.0, January 2004")
}

// TestFilesNameNoMachine: what stands in the repository must work on any machine, behind any mirror.
func TestFilesNameNoMachine(t *testing.T) {
	// Written in pieces, so that this file does not name them.
	dot := `\.`
	hosts := []string{
		"proxy" + dot + "golang" + dot + "org", "sum" + dot + "golang" + dot + "org", "go" + "proxy" + dot + "io",
		"registry" + dot + "npmjs", "deb" + dot + "debian" + dot + "org", "archive" + dot + "ubuntu" + dot + "com", "pypi" + dot + "org",
		"docker" + dot + "io", "ghcr" + dot + "io", "gcr" + dot + "io", "quay" + dot + "io", "registry" + dot + "k8s" + dot + "io",
	}
	pattern := regexp.MustCompile(`(?:^|[^\w.-])(` + strings.Join(hosts, "|") + `)\b|(?:^|[\s"'=:(` + "`" + `])/(?:work|root|home/\w+)/`)
	for _, bad := range []string{"https://proxy" + ".golang.org", "cd /wo" + "rk/main", `"/ro` + `ot/x"`, "image: docker" + ".io/x"} {
		require.Regexp(t, pattern, bad)
	}
	for _, good := range []string{"sigs.k8s.io/kpng", "./work/x", "a/root/b", "k8s.io/kubernetes"} {
		require.NotRegexp(t, pattern, good)
	}
	eachFile(t, func(path string, content []byte) {
		if filepath.Base(path) == "go.sum" {
			return
		}
		lines := bufio.NewScanner(bytes.NewReader(content))
		lines.Buffer(nil, 16<<20)
		for n := 1; lines.Scan(); n++ {
			if found := pattern.FindString(lines.Text()); found != "" {
				t.Errorf("%s:%d: names a registry or a machine's folder: %s", path, n, strings.TrimSpace(found))
			}
		}
	})
}

func TestProductDoesNotRequireKubernetes(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	require.NotContains(t, string(mod), "k8s.io/kubernetes")
	require.NotContains(t, string(mod), "\nreplace", "a replace directive does not reach those who import kpng")
}

// TestExamplesAreTested: what the README shows is run by a test that stands beside it.
func TestExamplesAreTested(t *testing.T) {
	examples, err := filepath.Glob(filepath.Join(root, "examples", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, examples)
	for _, example := range examples {
		tested := false
		err := filepath.WalkDir(example, func(path string, _ fs.DirEntry, err error) error {
			tested = tested || strings.HasSuffix(path, "_test.go")
			return err
		})
		require.NoError(t, err)
		if !tested {
			t.Errorf("%s has no test", example)
		}
	}
}

// makeTarget finds `make x` where it stands as a command: in backquotes, or at the start of an indented or fenced line.
var makeTarget = regexp.MustCompile("(?m)(?:`|^[ \t]*\\$?[ \t]*)make ([a-z][a-z0-9-]*)")

// scriptPath finds paths into the repository that a document tells to run or read.
var scriptPath = regexp.MustCompile("(?m)(?:^|[\\s`(])((?:\\./)?(?:scripts|examples|deploy|docs|test|cmd)/[\\w./-]*\\w)")

func TestDocumentsNameWhatExists(t *testing.T) {
	targets := makeTargets(t)
	seen := 0
	eachFile(t, func(path string, content []byte) {
		if !strings.HasSuffix(path, ".md") || strings.Contains(path, "testdata/") {
			return
		}
		for _, m := range makeTarget.FindAllSubmatch(content, -1) {
			seen++
			if !slices.Contains(targets, string(m[1])) {
				t.Errorf("%s: `make %s` is no target of the Makefile", path, m[1])
			}
		}
		for _, m := range scriptPath.FindAllSubmatch(content, -1) {
			fromRoot := filepath.Join(root, string(m[1]))
			beside := filepath.Join(root, filepath.Dir(path), string(m[1]))
			if !exists(fromRoot) && !exists(beside) {
				t.Errorf("%s: %s does not exist", path, m[1])
			}
		}
	})
	require.Positive(t, seen, "commands in the documents")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestHelpListsEveryTarget: `make help` is the list of commands; what a person may call stands there.
func TestHelpListsEveryTarget(t *testing.T) {
	cmd := exec.Command("make", "help")
	cmd.Dir = root
	help, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", help)
	for _, target := range makeTargets(t) {
		require.Contains(t, string(help), "make "+target+" ", "make help")
	}
	for _, promised := range []string{"demo", "test", "lint", "generate", "bench", "help", "build", "image"} {
		require.Contains(t, makeTargets(t), promised)
	}
}

// makeTargets are the targets of the Makefile that have a description.
func makeTargets(t *testing.T) []string {
	t.Helper()
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	var targets []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):.*## \S`).FindAllSubmatch(makefile, -1) {
		targets = append(targets, string(m[1]))
	}
	phony := regexp.MustCompile(`(?m)^\.PHONY: (.*)$`).FindAllSubmatch(makefile, -1)
	require.NotEmpty(t, phony)
	for _, m := range phony {
		if name := strings.TrimSpace(string(m[1])); !slices.Contains(targets, name) {
			t.Errorf("Makefile: %s has no description (## ...) for `make help`", name)
		}
	}
	return targets
}
