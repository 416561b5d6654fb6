// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"

	"sigs.k8s.io/kpng/server/store"
)

// globalPaths is how values of globalv1 are named on a stream.
//
// Ours are the paths of the compat page: namespace/name, namespace/service/key, and the name of a node. The retired
// `kpng api` cuts every path at three bars (namespace|name|source|key) and crashes on any other.
type globalPaths struct{ bars bool }

func (p globalPaths) service(s *store.Service) path {
	if !p.bars {
		return path{key: s.Key()}
	}
	return path{key: strings.Join([]string{s.Namespace(), s.Name(), "", ""}, "|")}
}

func (p globalPaths) endpoint(s *store.Service, e *store.Endpoint) path {
	if !p.bars {
		return path{s.Key(), e.Key()}
	}
	return path{key: strings.Join([]string{s.Namespace(), s.Name(), e.Source(), e.Key()}, "|")}
}

func (p globalPaths) node(n *store.Node) path {
	if !p.bars {
		return path{key: n.Name()}
	}
	return path{key: strings.Join([]string{"", n.Name(), "", ""}, "|")}
}

// retiredGRPC is the minor version of grpc-go 1.x (of December 2023) that tells old from new: the retired project's
// go.mod files ask for older ones, and what is built from them today still gets these.
const retiredGRPC = 60

// retiredPeer says whether the peer of a stream was built from the retired project. There is no better sign than
// the age of the gRPC library that it names in its user agent.
func retiredPeer(ctx context.Context) bool {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, agent := range md.Get("user-agent") {
		_, version, found := strings.Cut(agent, "grpc-go/1.")
		if !found {
			continue
		}
		version, _, _ = strings.Cut(version, ".")
		if minor, err := strconv.Atoi(version); err == nil && minor < retiredGRPC {
			return true
		}
	}
	return false
}
