// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"
)

// mostNamed is how many refused services are named, by an error and by the logs of a round.
const mostNamed = 10

// refusal of one service by the kernel.
type refusal struct {
	err   error
	tried time.Time
}

func (d *Driver) refuse(r *round, name string, err error) {
	r.causes[causeOf(err)] = true
	if d.refused[name] == nil {
		r.refused = append(r.refused, name)
	}
	d.refused[name] = &refusal{err: err, tried: time.Now()}
	delete(d.suspects, name)
}

// longestRefused are some names of refused services, those that were not tried for longest.
func (d *Driver) longestRefused(most int) []string {
	names := slices.SortedFunc(maps.Keys(d.refused), func(a, b string) int {
		return cmp.Or(d.refused[a].tried.Compare(d.refused[b].tried), cmp.Compare(a, b))
	})
	return names[:min(len(names), most)]
}

// notWritten names the services that the kernel refuses; nil when there is none.
func (d *Driver) notWritten() error {
	var errs []error
	names := slices.Sorted(maps.Keys(d.refused))
	for _, name := range names[:min(len(names), mostNamed)] {
		errs = append(errs, fmt.Errorf("service %s: %w", name, d.refused[name].err))
	}
	if more := len(names) - mostNamed; more > 0 {
		errs = append(errs, fmt.Errorf("and %d more services", more))
	}
	if n := d.undecided(); n > 0 {
		errs = append(errs, fmt.Errorf("%d services wait, as it is not found out yet which of them the kernel refuses", n))
	}
	return errors.Join(errs...)
}

// aboutCheck and aboutAll are what is logged about besides single services.
const (
	aboutCheck = " check"
	aboutAll   = " all"
)

// saids are the errors that were logged, by what they are about, so that a retry does not say them again.
type saids map[string]string

// differs tells whether an error, or its end, is news.
func (s *saids) differs(about string, err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if (*s)[about] == text {
		return false
	}
	if *s == nil {
		*s = saids{}
	}
	if text == "" {
		delete(*s, about)
	} else {
		(*s)[about] = text
	}
	return true
}

// report logs what is news.
func (d *Driver) report(err error) {
	if d.said.differs(aboutAll, err) {
		if err != nil {
			klog.ErrorS(err, "The kernel is not programmed; what it did before stays")
		} else {
			klog.InfoS("The kernel is programmed again")
		}
	}
	told, silent := 0, 0
	for _, name := range slices.Sorted(maps.Keys(d.refused)) {
		if !d.said.differs(name, d.refused[name].err) {
			continue
		}
		if told++; told > mostNamed {
			silent++
			continue
		}
		klog.ErrorS(d.refused[name].err, "The kernel refuses a service; it stays as it was, and is tried again", "service", name)
	}
	if silent > 0 {
		klog.InfoS("The kernel refuses more services", "services", silent)
	}
	for name := range d.said {
		if d.refused[name] == nil && name != aboutAll && name != aboutCheck {
			delete(d.said, name)
			klog.InfoS("A service is not refused any more", "service", name)
		}
	}
}
