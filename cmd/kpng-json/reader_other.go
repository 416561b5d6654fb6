// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"context"
	"os"
)

// waitForReader cannot tell here; the next write will.
func waitForReader(context.Context, *os.File) (gone bool) { return false }
