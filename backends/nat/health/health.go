// SPDX-License-Identifier: Apache-2.0

// Package health answers load balancers that ask which nodes to send traffic to: for a Service with externalTrafficPolicy
// Local on its healthCheckNodePort, and for all others on kube-proxy's /healthz. Answers are those of kube-proxy: status,
// headers and the members of the JSON.
package health

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// Service is what a health check node port is asked about.
type Service struct {
	Namespace, Name string
	// Port is spec.healthCheckNodePort.
	Port uint16
	// LocalEndpoints is how many ready endpoints are on this node.
	LocalEndpoints int
}

// answer of a health check node port.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// write answers 200 if traffic may be sent here, else 503.
func (s Service) write(w http.ResponseWriter, healthy bool) {
	var a answer
	a.Service.Namespace, a.Service.Name = s.Namespace, s.Name
	a.LocalEndpoints, a.ServiceProxyHealthy = s.LocalEndpoints, healthy
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(s.LocalEndpoints))
	writeJSON(w, healthy && s.LocalEndpoints > 0, a)
}

// node is the answer of /healthz and /livez.
type node struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible bool      `json:"nodeEligible"`
	Healthy      bool      `json:"healthy"`
}

// Node handles /healthz and /livez as kube-proxy does. healthy tells whether the node's rules are true; it is asked at
// each request.
func Node(healthy func() bool) http.Handler {
	mux := http.NewServeMux()
	handle := func(w http.ResponseWriter, _ *http.Request) {
		now, ok := time.Now(), healthy()
		writeJSON(w, ok, node{LastUpdated: now, CurrentTime: now, NodeEligible: true, Healthy: ok})
	}
	mux.HandleFunc("/healthz", handle)
	mux.HandleFunc("/livez", handle)
	return mux
}

func writeJSON(w http.ResponseWriter, ok bool, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "\t")
	_ = encoder.Encode(value) // who asked may have left
}
