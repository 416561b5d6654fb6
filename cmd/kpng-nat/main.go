// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command kpng-nat serves services as kube-proxy does.
package main

import (
	"sigs.k8s.io/kpng/backends/nat"
	"sigs.k8s.io/kpng/internal/process"
	"sigs.k8s.io/kpng/internal/program"
)

func main() { process.Execute(program.Command("kpng-nat", nat.New())) }
