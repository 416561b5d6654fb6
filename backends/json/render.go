// SPDX-License-Identifier: Apache-2.0

// Package json is the backend that prints the state as JSON or YAML.
//
// A change takes this way: Cmd (flags) has a changes.Sink call back a printer, which has the services that changed
// rendered, and writes them or everything, as --output says.
package json

import (
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// Output is a format.
type Output string

// The formats.
const (
	JSON    Output = "json"
	YAML    Output = "yaml"
	Changes Output = "changes"
)

// setLine and deleteLine are the lines of the format Changes. A deletion has nothing but the service's name.
type setLine struct {
	Op changes.Op
	*fullstate.ServiceEndpoints
}

type deleteLine struct {
	Op      changes.Op
	Service struct{ Namespace, Name string }
}

// render returns the text of a change in a format. In JSON and YAML, which are about what is there, a deletion has none.
func render(output Output, c changes.Change) ([]byte, error) {
	switch {
	case output == Changes && c.Op == changes.Delete:
		line := deleteLine{Op: c.Op}
		line.Service.Namespace, line.Service.Name = c.Item.Service.GetNamespace(), c.Item.Service.GetName()
		return jsonLine(line)
	case output == Changes:
		return jsonLine(setLine{c.Op, c.Item})
	case c.Op == changes.Delete:
		return nil, nil
	case output == YAML:
		text, err := yaml.Marshal(c.Item)
		return append([]byte("---\n"), text...), err
	case output == JSON:
		return jsonLine(c.Item)
	default:
		return nil, fmt.Errorf("unknown output %q", output)
	}
}

func jsonLine(v any) ([]byte, error) {
	line, err := json.Marshal(v)
	return append(line, '\n'), err
}
