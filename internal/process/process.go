// SPDX-License-Identifier: Apache-2.0

// Package process is what the binaries of kpng share: how they end, log, tell their version and show their metrics.
// Programs outside of this repository use package client, or backends/dataplane, which brings it along.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// ErrReported is returned by a command that has already told the user what went wrong.
var ErrReported = errors.New("failed")

// Execute runs a root command and ends the process: status 0, or 1 after one line on standard error that says what
// went wrong. The command's context ends at the first SIGINT or SIGTERM; a second one ends the process at once.
func Execute(root *cobra.Command) {
	os.Exit(run(root))
}

func run(root *cobra.Command) int {
	defer klog.Flush()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // after the first signal, the next one has its default effect

	root.SilenceUsage = true
	root.SilenceErrors = true
	root.Version = Version()
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.PersistentPreRun = setUpLogging
	root.AddCommand(versionCommand())
	refuseUnknownSubcommands(root)

	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if !errors.Is(err, ErrReported) {
		report(cmd, err)
	}
	return 1
}

// report says on one line of standard error what ended a command; with --log-format=json, in JSON as every other line.
func report(cmd *cobra.Command, err error) {
	if logsJSON(cmd) {
		jsonLogger().Error("Failed", "command", cmd.CommandPath(), "err", oneLine(err))
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", cmd.CommandPath(), oneLine(err))
}

// oneLine keeps an error on one line, also when it joins several.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

// refuseUnknownSubcommands makes commands that only group others say so. Cobra by itself prints the help and
// succeeds.
func refuseUnknownSubcommands(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		refuseUnknownSubcommands(sub)
	}
	if cmd.Runnable() || !cmd.HasSubCommands() {
		return
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fmt.Errorf("a subcommand is missing: %s (see --help)", subcommands(cmd))
		}
		return fmt.Errorf("unknown subcommand %q: want %s (see --help)", args[0], subcommands(cmd))
	}
}

func subcommands(cmd *cobra.Command) string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return strings.Join(names, ", ")
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the Go version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s %s %s/%s\n",
				cmd.Root().Name(), Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// Version tells the version from the build: the module's version, the commit, and whether there were changes to it.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	if version == "" || version == "(devel)" {
		version = "devel"
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	revision := settings["vcs.revision"]
	if revision == "" {
		return version
	}
	if settings["vcs.modified"] == "true" {
		revision += "+changes"
	}
	return version + " (" + revision + ")"
}
