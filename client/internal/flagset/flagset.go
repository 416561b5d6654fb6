// SPDX-License-Identifier: Apache-2.0

// Package flagset binds flags that two parts of one program may want under the same name, such as --node-name, which
// both a Runner and a backend's own configuration have. Flag packages panic at the second definition; here, the second
// one joins the first, and both variables follow the flag.
package flagset

import (
	"flag"
	"time"

	"github.com/spf13/pflag"
)

// Binder is the least that a set of flags can do; [flag.FlagSet] and [pflag.FlagSet] both can.
type Binder interface {
	DurationVar(varPtr *time.Duration, name string, value time.Duration, doc string)
	IntVar(varPtr *int, name string, value int, doc string)
	StringVar(varPtr *string, name, value, doc string)
	Uint64Var(varPtr *uint64, name string, value uint64, doc string)
}

// String binds p to the flag. When the flag exists already, p has its default from here and follows the flag.
func String(flags Binder, p *string, name, value, doc string) {
	if !join(flags, name, func(flags *pflag.FlagSet) { flags.StringVar(p, name, value, doc) }) {
		flags.StringVar(p, name, value, doc)
	}
}

// Duration is String for durations.
func Duration(flags Binder, p *time.Duration, name string, value time.Duration, doc string) {
	if !join(flags, name, func(flags *pflag.FlagSet) { flags.DurationVar(p, name, value, doc) }) {
		flags.DurationVar(p, name, value, doc)
	}
}

// Int is String for integers.
func Int(flags Binder, p *int, name string, value int, doc string) {
	if !join(flags, name, func(flags *pflag.FlagSet) { flags.IntVar(p, name, value, doc) }) {
		flags.IntVar(p, name, value, doc)
	}
}

// Bool binds p, where the set of flags knows booleans at all.
func Bool(flags Binder, p *bool, name string, value bool, doc string) {
	*p = value
	if join(flags, name, func(flags *pflag.FlagSet) { flags.BoolVar(p, name, value, doc) }) {
		return
	}
	if b, ok := flags.(interface {
		BoolVar(p *bool, name string, value bool, doc string)
	}); ok {
		b.BoolVar(p, name, value, doc)
	}
}

// join adds a variable to a flag that exists already, and says whether there is such a flag. bind binds the variable
// to a set of its own, from where its Value is taken.
func join(flags Binder, name string, bind func(*pflag.FlagSet)) bool {
	second := func() pflag.Value {
		own := pflag.NewFlagSet(name, pflag.ContinueOnError)
		bind(own)
		return own.Lookup(name).Value
	}
	switch flags := flags.(type) {
	case *pflag.FlagSet:
		f := flags.Lookup(name)
		if f == nil {
			return false
		}
		f.Value = &joined{Value: f.Value, second: second()}
	case *flag.FlagSet:
		f := flags.Lookup(name)
		if f == nil {
			return false
		}
		f.Value = &joinedGo{Value: f.Value, second: second()}
	default:
		return false
	}
	return true
}

// joined sets two variables at once.
type joined struct {
	pflag.Value
	second pflag.Value
}

func (j *joined) Set(s string) error {
	if err := j.Value.Set(s); err != nil {
		return err
	}
	return j.second.Set(s)
}

type joinedGo struct {
	flag.Value
	second pflag.Value
}

func (j *joinedGo) Set(s string) error {
	if err := j.Value.Set(s); err != nil {
		return err
	}
	return j.second.Set(s)
}

// IsBoolFlag lets a boolean be given without a value.
func (j *joinedGo) IsBoolFlag() bool {
	b, ok := j.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}
