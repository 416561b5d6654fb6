// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// document is one YAML or JSON document of a file, as JSON.
type document struct {
	number int // from 1
	line   int // where it starts, from 1
	json   []byte
}

// lineError is an error at a line of a file.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// documents splits a file. Documents without content are left out.
func documents(data []byte) ([]document, error) {
	var out []document
	add := func(line int, json []byte) {
		if string(bytes.TrimSpace(json)) != "null" {
			out = append(out, document{number: len(out) + 1, line: line, json: json})
		}
	}
	for _, part := range split(data) {
		if isJSON(part.text) {
			if err := values(part, add); err != nil {
				return nil, err
			}
			continue
		}
		json, err := yaml.YAMLToJSONStrict(part.text)
		if err != nil {
			return nil, yamlError(part, err)
		}
		add(part.line, json)
	}
	return out, nil
}

// part is a piece of a file between document markers.
type part struct {
	line int // of its first content, from 1
	text []byte
}

// split cuts at YAML's document markers, which stand at the start of a line and cannot be within a document. The
// lines before the content of a part are kept as empty ones, so that columns and lines stay what they are.
func split(data []byte) []part {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var out []part
	current := part{}
	finish := func() {
		if current.line != 0 {
			out = append(out, current)
		}
		current = part{}
	}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if marker := bytes.HasPrefix(line, []byte("---")); marker || bytes.HasPrefix(line, []byte("...")) {
			if rest := line[3:]; len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0 {
				finish()
				if !marker {
					continue
				}
				line = append([]byte("   "), rest...)
			}
		}
		content := bytes.TrimSpace(line)
		if current.line == 0 {
			if len(content) == 0 || content[0] == '#' || line[0] == '%' { // %YAML directives say nothing to us
				continue
			}
			current.line = number
		}
		current.text = append(current.text, line...)
	}
	finish()
	return out
}

// isJSON tells JSON from YAML's flow mappings, which look alike at the beginning.
func isJSON(text []byte) bool {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || text[0] != '{' {
		return false
	}
	var value json.RawMessage
	return json.NewDecoder(bytes.NewReader(text)).Decode(&value) == nil
}

// values reads JSON values that follow each other.
func values(p part, add func(line int, json []byte)) error {
	decoder := json.NewDecoder(bytes.NewReader(p.text))
	for {
		var value json.RawMessage
		err := decoder.Decode(&value)
		end := decoder.InputOffset()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				end = min(syntax.Offset, int64(len(p.text)))
			}
			return &lineError{line: p.line + bytes.Count(p.text[:end], []byte("\n")), err: fmt.Errorf("not JSON: %w", err)}
		}
		start := end - int64(len(value))
		add(p.line+bytes.Count(p.text[:start], []byte("\n")), value)
	}
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// yamlError moves the line of a YAML error from the part to the file.
func yamlError(p part, err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	line := p.line
	if match := yamlLine.FindStringSubmatchIndex(text); match != nil {
		if n, convErr := strconv.Atoi(text[match[2]:match[3]]); convErr == nil {
			line = p.line + n - 1
			text = text[:match[0]] + text[match[1]:]
		}
	}
	return &lineError{line: line, err: errors.New(text)}
}
