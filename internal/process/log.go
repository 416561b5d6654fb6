// SPDX-License-Identifier: Apache-2.0

package process

import (
	"encoding"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// logsJSON tells whether a command was asked for --log-format=json.
func logsJSON(cmd *cobra.Command) bool {
	format := cmd.Flag("log-format")
	return format != nil && format.Value.String() == "json"
}

// setUpLogging is for the time between the flags and the command, which may log from its first step on.
func setUpLogging(cmd *cobra.Command, _ []string) {
	if logsJSON(cmd) {
		klog.SetSlogLogger(jsonLogger())
	}
}

// jsonLogger is what --log-format=json logs with. klog decides by -v itself which of its messages are logged and hands
// them on as plain ones, but the loggers that libraries take from it (client-go does) ask the handler.
func jsonLogger() *slog.Logger {
	verbosity := 0
	for verbosity < 100 && klog.V(klog.Level(verbosity+1)).Enabled() {
		verbosity++
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{
		Level:       slog.Level(-verbosity),
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr { return slog.Attr{Key: a.Key, Value: readable(a.Value)} },
	}))
}

// readable is a value as the text format shows it when it has a text of its own: an enumeration would else be a number,
// and a struct without public fields would be {}.
func readable(v slog.Value) slog.Value {
	if v.Kind() != slog.KindAny {
		return v
	}
	switch value := v.Any().(type) {
	case error, json.Marshaler, encoding.TextMarshaler: // the handler knows what to do
	case fmt.Stringer:
		return slog.StringValue(value.String())
	}
	return v
}
