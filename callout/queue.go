// SPDX-License-Identifier: Apache-2.0

package callout

import "time"

// queue holds the tasks that wait: at most one a key, in the order in which the keys came.
type queue struct {
	order []string
	tasks map[string]*task
}

func newQueue() *queue {
	return &queue{tasks: map[string]*task{}}
}

func (q *queue) len() int { return len(q.order) }

func (q *queue) has(key string) bool { return q.tasks[key] != nil }

// put adds a task and says whether it replaced one, whose place it then takes.
func (q *queue) put(t *task) (replaced bool) {
	replaced = q.has(t.key)
	if !replaced {
		q.order = append(q.order, t.key)
	}
	q.tasks[t.key] = t
	return replaced
}

// take removes the first task that is due at now, and returns it. When there is none, wait says how long it is
// until one will be; 0 when nothing waits.
func (q *queue) take(now time.Time) (t *task, wait time.Duration) {
	for i, key := range q.order {
		t := q.tasks[key]
		left := t.due.Sub(now)
		if t.due.IsZero() || left <= 0 {
			q.order = append(q.order[:i], q.order[i+1:]...)
			delete(q.tasks, key)
			return t, 0
		}
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return nil, wait
}

// drain removes all tasks and returns them in their order.
func (q *queue) drain() []*task {
	var tasks []*task
	for _, key := range q.order {
		tasks = append(tasks, q.tasks[key])
	}
	*q = *newQueue()
	return tasks
}
