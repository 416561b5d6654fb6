// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The tests of this file run in bubbles of testing/synctest: time passes when everyone waits, at once and exactly.

// ran is one run that a fake program has seen.
type ran struct {
	key      string
	revision uint64
	reason   reason
	attempt  int
	at       time.Duration // since the start
}

// fake is a worker whose program takes a given time and ends as it is told.
type fake struct {
	*worker
	start time.Time
	takes time.Duration
	fails func(*task) bool
	runs  []ran
}

func newFake(resync time.Duration) *fake {
	f := &fake{start: time.Now(), fails: func(*task) bool { return false }}
	f.worker = &worker{
		backoff: backoff{first: time.Second, most: 10 * time.Second},
		resync:  resync,
		metrics: newMetrics(),
		run: func(ctx context.Context, t *task) error {
			f.runs = append(f.runs, ran{t.key, t.revision, t.reason, t.attempt, time.Since(f.start)})
			select {
			case <-time.After(f.takes):
			case <-ctx.Done():
				return errStopped
			}
			if f.fails(t) {
				return fmt.Errorf("revision %d failed", t.revision)
			}
			return nil
		},
	}
	f.worker.start()
	return f
}

// change offers a state.
func (f *fake) change(key string, revision uint64) {
	f.offer(newTask(key, nil, revision, reasonChange))
}

func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(0)
		f.takes = 10 * time.Second
		for revision := range uint64(100) {
			f.change("", revision+1)
			synctest.Wait()
			time.Sleep(50 * time.Millisecond)
		}
		require.NoError(t, f.finish(t.Context()))
		require.Equal(t, []ran{
			{"", 1, reasonStart, 1, 0},
			{"", 100, reasonChange, 1, 10 * time.Second},
		}, f.runs)
		require.EqualValues(t, 98, value(t, f.metrics, "kpng_callout_coalesced_total", ""))
		require.EqualValues(t, 2, value(t, f.metrics, "kpng_callout_runs_total", resultSuccess))
		require.EqualValues(t, 0, value(t, f.metrics, "kpng_callout_running", ""))
		require.EqualValues(t, 0, value(t, f.metrics, "kpng_callout_waiting", ""))
		require.EqualValues(t, time.Now().Unix(), int64(value(t, f.metrics, "kpng_callout_last_success_timestamp_seconds", "")))
	})
}

func TestOfferDoesNotWaitForTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(0)
		f.takes = time.Hour
		before := time.Now()
		for revision := range uint64(1000) {
			f.change("", revision+1)
		}
		require.Equal(t, before, time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, f.finish(ctx))
	})
}

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(0)
		f.fails = func(t *task) bool { return t.attempt < 8 }
		f.change("", 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, f.runs, 8)
		most := time.Second
		for i := 1; i < len(f.runs); i++ {
			require.Equal(t, reasonRetry, f.runs[i].reason)
			require.Equal(t, i+1, f.runs[i].attempt)
			require.EqualValues(t, 1, f.runs[i].revision)
			wait := f.runs[i].at - f.runs[i-1].at
			require.GreaterOrEqual(t, wait, most/2, "before attempt %d", i+1)
			require.LessOrEqual(t, wait, most, "before attempt %d", i+1)
			most = min(2*most, 10*time.Second)
		}
		require.NoError(t, f.ready())
		require.NoError(t, f.finish(t.Context()))
		require.EqualValues(t, 7, value(t, f.metrics, "kpng_callout_runs_total", resultFailure))
	})
}

func TestNewerStateReplacesRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(0)
		f.fails = func(t *task) bool { return t.revision == 1 }
		f.change("", 1)
		synctest.Wait()
		require.EqualError(t, f.ready(), "revision 1 failed")
		time.Sleep(100 * time.Millisecond) // before the retry
		f.change("", 2)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []ran{
			{"", 1, reasonStart, 1, 0},
			{"", 2, reasonChange, 1, 100 * time.Millisecond}, // at once, and it succeeded: no retry of the old one
		}, f.runs)
		require.NoError(t, f.ready())
		require.NoError(t, f.finish(t.Context()))
	})
}

func TestNewerStateDuringAFailingRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(0)
		f.takes = time.Second
		f.fails = func(t *task) bool { return t.revision == 1 }
		f.change("", 1)
		synctest.Wait()
		f.change("", 2)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []ran{{"", 1, reasonStart, 1, 0}, {"", 2, reasonChange, 1, time.Second}}, f.runs)
		require.NoError(t, f.finish(t.Context()))
	})
}

func TestPerServiceOrderAndRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(0)
		f.takes = time.Second
		f.fails = func(t *task) bool { return t.key == "ns/b" && t.attempt == 1 }
		for _, key := range []string{"ns/a", "ns/b", "ns/c"} {
			f.change(key, 1)
		}
		synctest.Wait()
		f.change("ns/c", 2) // takes the place of the waiting one
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, f.runs, 4)
		require.Equal(t, []ran{
			{"ns/a", 1, reasonStart, 1, 0},
			{"ns/b", 1, reasonStart, 1, time.Second},
			{"ns/c", 2, reasonChange, 1, 2 * time.Second}, // not held up by the failure of ns/b
		}, f.runs[:3])
		require.Equal(t, "ns/b", f.runs[3].key)
		require.Equal(t, reasonRetry, f.runs[3].reason)
		require.NoError(t, f.finish(t.Context()))
	})
}

// TestRetryOfDelete: a program must not take a deleted service for one without endpoints because it failed once.
func TestRetryOfDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(0)
		f.fails = func(t *task) bool { return t.attempt == 1 }
		f.offer(newTask("ns/a", nil, 7, reasonDelete))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, f.runs, 2)
		require.Equal(t, reasonDelete, f.runs[1].reason)
		require.Equal(t, 2, f.runs[1].attempt)
		require.NoError(t, f.finish(t.Context()))
	})
}

func TestResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(time.Minute)
		time.Sleep(90 * time.Second)
		synctest.Wait()
		require.Empty(t, f.runs, "there is no state yet")
		f.change("ns/b", 1)
		f.change("ns/a", 2)
		f.offer(newTask("ns/gone", nil, 1, reasonChange))
		f.offer(newTask("ns/gone", nil, 3, reasonDelete))
		time.Sleep(100 * time.Second)
		synctest.Wait()
		require.Equal(t, []ran{
			{"ns/b", 1, reasonStart, 1, 90 * time.Second},
			{"ns/a", 2, reasonChange, 1, 90 * time.Second},
			{"ns/gone", 3, reasonDelete, 1, 90 * time.Second},
			{"ns/a", 2, reasonResync, 1, 2 * time.Minute},
			{"ns/b", 1, reasonResync, 1, 2 * time.Minute},
			{"ns/a", 2, reasonResync, 1, 3 * time.Minute},
			{"ns/b", 1, reasonResync, 1, 3 * time.Minute},
		}, f.runs)
		require.NoError(t, f.finish(t.Context()))
	})
}

func TestResyncLeavesWhatWaitsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(100 * time.Millisecond)
		f.fails = func(t *task) bool { return true }
		f.change("", 1)
		time.Sleep(400 * time.Millisecond) // the first retry waits for at least half a second
		synctest.Wait()
		require.Len(t, f.runs, 1)
		require.ErrorContains(t, f.finish(t.Context()), "failed")
	})
}

func TestFinish(t *testing.T) {
	tests := map[string]struct {
		fails []string
		want  string
	}{
		"all well":    {nil, ""},
		"one failure": {[]string{"ns/b"}, "revision 2 failed"},
		"two":         {[]string{"ns/b", "ns/c"}, "2 runs failed; the first: revision 2 failed"},
	}
	for name, test := range tests {
		for _, late := range []bool{false, true} { // finished before or after the runs have failed
			t.Run(fmt.Sprintf("%s, late: %v", name, late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake(0)
					f.takes = 10 * time.Millisecond
					f.fails = func(t *task) bool { return slices.Contains(test.fails, t.key) }
					for i, key := range []string{"ns/a", "ns/b", "ns/c"} {
						f.change(key, uint64(i)+1)
					}
					if late {
						time.Sleep(100 * time.Millisecond)
					}
					err := f.finish(t.Context())
					require.Len(t, f.runs, 3, "everything is run, and nothing twice")
					if test.want == "" {
						require.NoError(t, err)
					} else {
						require.EqualError(t, err, test.want)
					}
				})
			})
		}
	}
}

func TestFinishStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(time.Second)
		f.takes = time.Hour
		f.change("ns/a", 1)
		f.change("ns/b", 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, f.finish(ctx), "being told to stop is no failure")
		require.Len(t, f.runs, 1, "nothing is begun any more")
		require.Equal(t, time.Minute, time.Since(f.start))
	})
}

func TestBackoff(t *testing.T) {
	b := backoff{first: 500 * time.Millisecond, most: time.Minute}
	seen := map[time.Duration]bool{}
	for attempt, most := range []time.Duration{500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000} {
		for range 100 {
			d := b.after(attempt + 1)
			require.GreaterOrEqual(t, d, most*time.Millisecond/2)
			require.LessOrEqual(t, d, most*time.Millisecond)
			seen[d] = true
		}
	}
	require.Greater(t, len(seen), 100, "no two nodes at once")
	require.LessOrEqual(t, b.after(1<<40), time.Minute)
}

func TestResult(t *testing.T) {
	for want, err := range map[string]error{
		resultSuccess: nil, resultFailure: errors.New("exit status 1"), resultTimeout: fmt.Errorf("x: %w", errTimeout),
		resultStopped: fmt.Errorf("x: %w", errStopped), resultNotStarted: fmt.Errorf("x: %w", errNotStarted),
	} {
		require.Equal(t, want, result(err))
	}
}
