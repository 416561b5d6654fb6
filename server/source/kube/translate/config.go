// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Config says which objects are carried and how much of their metadata. Every source that reads Kubernetes objects
// has these flags.
type Config struct {
	// ServiceProxyName selects the services whose label service.kubernetes.io/service-proxy-name has this value.
	// Empty selects those without the label, which are kube-proxy's otherwise.
	ServiceProxyName string

	// Globs of label and annotation names, see [path.Match]. "*" alone stands for all names, also those with a slash.
	ServiceLabels      []string
	ServiceAnnotations []string
	NodeLabels         []string
	NodeAnnotations    []string
}

// BindFlags adds the flags and sets the defaults.
func (c *Config) BindFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.ServiceProxyName, "service-proxy-name", "",
		"serve the services labelled service.kubernetes.io/service-proxy-name=`NAME`; when empty, those without that label")
	fs.StringSliceVar(&c.ServiceLabels, "with-service-labels", nil,
		"`GLOBS` of the service labels to carry")
	fs.StringSliceVar(&c.ServiceAnnotations, "with-service-annotations", nil,
		"`GLOBS` of the service annotations to carry")
	fs.StringSliceVar(&c.NodeLabels, "with-node-labels",
		[]string{corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion},
		"`GLOBS` of the node labels to carry")
	fs.StringSliceVar(&c.NodeAnnotations, "with-node-annotations", nil,
		"`GLOBS` of the node annotations to carry")
}

// Validate reports every fault at once.
func (c *Config) Validate() error {
	var errs []error
	for _, msg := range validation.IsValidLabelValue(c.ServiceProxyName) {
		errs = append(errs, fmt.Errorf("--service-proxy-name %q: %s", c.ServiceProxyName, msg))
	}
	for flag, globs := range map[string][]string{
		"--with-service-labels":      c.ServiceLabels,
		"--with-service-annotations": c.ServiceAnnotations,
		"--with-node-labels":         c.NodeLabels,
		"--with-node-annotations":    c.NodeAnnotations,
	} {
		for _, glob := range globs {
			if _, err := path.Match(glob, ""); err != nil {
				errs = append(errs, fmt.Errorf("%s %q: not a glob (* ? [a-z] are known): %w", flag, glob, err))
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// selected returns the entries of a map whose names match a glob; nil when there are none.
func selected(from map[string]string, globs []string) map[string]string {
	if len(globs) == 0 || len(from) == 0 {
		return nil
	}
	picked := maps.Clone(from)
	maps.DeleteFunc(picked, func(name, _ string) bool { return !matchesAny(globs, name) })
	if len(picked) == 0 {
		return nil
	}
	return picked
}

func matchesAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		if glob == "*" {
			return true
		}
		ok, err := path.Match(glob, name)
		return ok && err == nil
	})
}
