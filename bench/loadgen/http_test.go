package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestHTTPPublishesAreWhatServersUnderstand(t *testing.T) {
	for _, c := range []struct {
		batch int
		fresh bool
		path  string
		bytes int64
	}{{1, false, "/pub", 10}, {20, false, "/mpub", 220}, {1, true, "/pub", 10}} {
		var requests, bodies, connections atomic.Int64
		server := &http.Server{
			ConnState: func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					connections.Add(1)
				}
			},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil || r.URL.Path != c.path || r.URL.Query().Get("topic") != "t" || r.Method != "POST" {
					t.Errorf("%s %s: %v", r.Method, r.URL, err)
				}
				requests.Add(1)
				bodies.Add(int64(len(body)))
				io.WriteString(w, "OK")
			}),
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go server.Serve(listener)
		settings := httpSettings{
			address: listener.Addr().String(), topic: "t", connections: 2, bodyBytes: 10, batch: c.batch, fresh: c.fresh,
			duration: 50 * time.Millisecond,
		}
		result, err := publishHTTP(settings)
		server.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := requests.Load(); got == 0 || result.Messages != got*int64(c.batch) || bodies.Load() != got*c.bytes {
			t.Errorf("%s: %d requests of %d bytes, %d messages", c.path, got, bodies.Load(), result.Messages)
		}
		if c.fresh && connections.Load() < requests.Load() || !c.fresh && connections.Load() != 2 {
			t.Errorf("fresh %v: %d connections for %d requests", c.fresh, connections.Load(), requests.Load())
		}
		if result.LatencyUS == nil || result.LatencyUS.P50 <= 0 {
			t.Errorf("%s: latency %v", c.path, result.LatencyUS)
		}
	}
}

func TestHTTPRefusalsEndTheRun(t *testing.T) {
	address := startOnce(t, func(conn net.Conn) {
		bufio.NewReader(conn).ReadString('\n')
		io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
	})
	_, err := publishHTTP(httpSettings{
		address: address, topic: "t", connections: 1, bodyBytes: 10, batch: 1, duration: time.Minute,
	})
	if err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("%v", err)
	}
}
