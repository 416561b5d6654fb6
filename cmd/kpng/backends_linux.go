// SPDX-License-Identifier: Apache-2.0

package main

import (
	// The backends that program the kernel.
	_ "sigs.k8s.io/kpng/backends/allip"
	_ "sigs.k8s.io/kpng/backends/nat"
)
