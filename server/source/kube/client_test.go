// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTransportNoticesSilence(t *testing.T) {
	silent, over := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/silent" {
			<-silent
			return
		}
		_, _ = io.WriteString(w, "first ")
		w.(http.Flusher).Flush()
		<-over // longer than the timeout, which is for the beginning only
		_, _ = io.WriteString(w, "last")
	}))
	defer server.Close()
	defer close(silent)
	var heard atomic.Int64
	inner := &http.Transport{}
	defer inner.CloseIdleConnections()
	const timeout = 300 * time.Millisecond
	rt := &transport{next: inner, heard: &heard, timeout: timeout}

	var cause error
	ctx := context.WithValue(t.Context(), causeKey{}, &cause)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/silent", http.NoBody)
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	if err == nil {
		resp.Body.Close()
	}
	require.ErrorIs(t, err, errNoAnswer)
	require.ErrorIs(t, cause, errNoAnswer)
	require.Zero(t, heard.Load())

	time.AfterFunc(2*timeout, func() { close(over) })
	req, err = http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/slow", http.NoBody)
	require.NoError(t, err)
	resp, err = rt.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "first last", string(body))
	require.NoError(t, cause)
	require.EqualValues(t, 1, heard.Load())
}
