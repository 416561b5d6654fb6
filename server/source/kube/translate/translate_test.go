// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"sigs.k8s.io/yaml"
)

// parse reads a message from YAML with the names of the .proto files.
func parse[M proto.Message](t *testing.T, text string, into M) M {
	t.Helper()
	json, err := yaml.YAMLToJSONStrict([]byte(text))
	require.NoError(t, err)
	require.NoError(t, protojson.Unmarshal(json, into))
	return into
}

// object reads a Kubernetes object from YAML.
func object[O any](t *testing.T, text string) *O {
	t.Helper()
	out := new(O)
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), out))
	return out
}

func requireSame(t *testing.T, want, got proto.Message) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
}

// requireProblems compares each problem with the start of the wanted one.
func requireProblems(t *testing.T, want []string, got Problems) {
	t.Helper()
	require.Len(t, got, len(want), "%q", got)
	for i := range want {
		require.Contains(t, got[i], want[i])
	}
}
