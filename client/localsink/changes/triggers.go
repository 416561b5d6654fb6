// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"time"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/internal/ops"
)

// triggers are the trigger times that the ops of a change set bring, the earliest of each service, by namespace/name.
type triggers map[string]time.Time

// note notes the time of an op about an endpoint, if it has one.
func (t *triggers) note(op *localv1.OpItem) {
	if op.GetTriggeredAt() <= 0 {
		return
	}
	ref := op.GetDelete()
	if set := op.GetSet(); set != nil {
		ref = set.GetRef()
	}
	service, _, err := ops.EndpointPath(ref.GetPath())
	if err != nil || ref.GetSet() != localv1.Set_EndpointsSet {
		return // the state tells of what makes no sense
	}
	at := time.Unix(0, op.GetTriggeredAt())
	if earliest, known := (*t)[service]; known && !at.Before(earliest) {
		return
	}
	if *t == nil {
		*t = triggers{}
	}
	(*t)[service] = at
}

// take returns what was noted, and forgets it.
func (t *triggers) take() triggers {
	taken := *t
	*t = nil
	return taken
}
