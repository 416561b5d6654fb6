// SPDX-License-Identifier: Apache-2.0

package e2e

import "testing"

func TestSmoke(t *testing.T) { t.Log(k8s.URL) }
