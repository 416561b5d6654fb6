// SPDX-License-Identifier: Apache-2.0

package store

import "time"

// trigger is when what made the endpoints of a service change happened, in Unix nanoseconds, or one of the constants.
type trigger int64

const (
	// unknown: the source does not tell. It says nothing against what is known of other changes.
	unknown trigger = 0
	// gone: the service or one of its slices was deleted. When that was triggered is not known, and what was known of
	// changes before it is about what is there no more.
	gone trigger = -1
)

func triggerAt(t time.Time) trigger {
	// Text from outside may name a year that Unix nanoseconds do not reach.
	if at := t.UnixNano(); at > 0 && time.Unix(0, at).Equal(t) {
		return trigger(at)
	}
	return unknown
}

// with is the trigger of two changes in one commit.
func (t trigger) with(o trigger) trigger {
	switch {
	case t == gone || o == gone:
		return gone
	case t == unknown, o != unknown && o < t:
		return o
	default:
		return t
	}
}

// then is the trigger of what was gathered and a later commit.
func (t trigger) then(later trigger) trigger {
	if later == gone {
		return unknown
	}
	return t.with(later)
}

// Triggers returns, by the keys of services, when the first cause of what differs in their endpoints happened, in Unix
// nanoseconds. Services of which that is not known are left out: those that were deleted meanwhile, or whose slices
// were, and all when the snapshots are too far apart. Its cost follows the number of changes in between.
func (d *Diff) Triggers() map[string]int64 {
	var times map[string]int64
	for _, c := range d.changes {
		if c.trigger == unknown || c.node {
			continue
		}
		if times == nil {
			times = map[string]int64{}
		}
		if at := trigger(times[c.key]).then(c.trigger); at != unknown {
			times[c.key] = int64(at)
		} else {
			delete(times, c.key)
		}
	}
	return times
}
