// SPDX-License-Identifier: Apache-2.0

// Command minimal is a whole backend: it prints what kpng tells this node, one line of JSON an item.
package main

import (
	"encoding/json"
	"os"

	"sigs.k8s.io/kpng/client"
)

func main() {
	client.Run(func(items []*client.ServiceEndpoints) {
		enc := json.NewEncoder(os.Stdout)
		for _, it := range items {
			_ = enc.Encode(it)
		}
	})
}
