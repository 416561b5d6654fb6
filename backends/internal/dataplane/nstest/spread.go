// SPDX-License-Identifier: Apache-2.0

package nstest

import "fmt"

// chiSquareBound is what the chi-square statistic of an even spread exceeds once in 100,000 times, by degrees of
// freedom: a test that fails wrongly that seldom, and still sees an endpoint that gets half of its share in 500 answers.
// (Quantiles of the chi-square distribution at 1-1e-5.)
var chiSquareBound = map[int]float64{1: 19.511, 2: 23.026, 3: 25.902, 4: 28.473, 5: 30.856, 6: 33.107}

// Spread tells, as an error, that counts are not what an even random spread over these names gives. Names
// outside of the list are an error too.
func Spread(counts map[string]int, names ...string) error {
	bound, ok := chiSquareBound[len(names)-1]
	if !ok {
		return fmt.Errorf("no chi-square bound for %d names", len(names))
	}
	total, known := 0, 0
	for _, n := range counts {
		total += n
	}
	for _, name := range names {
		known += counts[name]
	}
	if known != total {
		return fmt.Errorf("answers of others than %v: %v", names, counts)
	}
	want := float64(total) / float64(len(names))
	if want < 5 {
		return fmt.Errorf("%d answers are too few to tell anything about %d names", total, len(names))
	}
	chi := 0.0
	for _, name := range names {
		d := float64(counts[name]) - want
		chi += d * d / want
	}
	if chi > bound {
		return fmt.Errorf("spread %v is uneven: chi-square %.1f, bound %.1f", counts, chi, bound)
	}
	return nil
}
