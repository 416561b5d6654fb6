// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command kpng-allip sends every packet of a service's external IPs to a pod on this node.
package main

import (
	"sigs.k8s.io/kpng/backends/allip"
	"sigs.k8s.io/kpng/internal/process"
	"sigs.k8s.io/kpng/internal/program"
)

func main() { process.Execute(program.Command("kpng-allip", allip.New())) }
