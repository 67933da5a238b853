package main

import (
	"net"
	"strings"
	"testing"
	"time"
)

// startNull serves until the test ends and returns the address.
func startNull(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go newNullServer(100).serve(listener)
	return listener.Addr().String()
}

// startOnce serves one connection and returns the address.
func startOnce(t *testing.T, serve func(conn net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		if conn, err := listener.Accept(); err == nil {
			serve(conn)
		}
	}()
	return listener.Addr().String()
}

func TestPublishSendsTheCountAskedFor(t *testing.T) {
	settings := pubSettings{address: startNull(t), topic: "t", connections: 3, bodyBytes: 10, duration: time.Minute, count: 9000}
	for _, c := range []struct{ batch, depth int }{{1, 1}, {1, 500}, {100, 1}, {100, 7}} {
		settings.batch, settings.depth = c.batch, c.depth
		result, err := publish(settings)
		if err != nil {
			t.Fatal(err)
		}
		if result.Messages != 9000 {
			t.Errorf("batch %d, depth %d: %d messages", c.batch, c.depth, result.Messages)
		}
		if (result.LatencyUS != nil) != (c.depth == 1) {
			t.Errorf("batch %d, depth %d: latency %v", c.batch, c.depth, result.LatencyUS)
		}
	}
}

func TestSpinningReadsTheSameReplies(t *testing.T) {
	settings := pubSettings{address: startNull(t), topic: "t", connections: 1, bodyBytes: 10, batch: 1, depth: 1, spin: true, duration: time.Minute, count: 500}
	result, err := publish(settings)
	if err != nil {
		t.Fatal(err)
	}
	if result.Messages != 500 || result.LatencyUS == nil {
		t.Errorf("%+v", result)
	}
}

func TestConsumeFinishesEverythingDelivered(t *testing.T) {
	settings := subSettings{address: startNull(t), topic: "t", channel: "c", connections: 2, ready: 10, finish: true, duration: time.Minute, count: 5000}
	result, err := consume(settings)
	if err != nil {
		t.Fatal(err)
	}
	if result.Messages < 5000 || result.Finished != result.Messages {
		t.Errorf("%d delivered, %d finished", result.Messages, result.Finished)
	}
}

func TestConsumeWithoutFinishGetsOneWindow(t *testing.T) {
	settings := subSettings{address: startNull(t), topic: "t", channel: "c", connections: 2, ready: 10, duration: 200 * time.Millisecond}
	result, err := consume(settings)
	if err != nil {
		t.Fatal(err)
	}
	if result.Messages != 20 || result.Finished != 0 {
		t.Errorf("%d delivered, %d finished", result.Messages, result.Finished)
	}
}

func TestPublishFailsOnAnErrorFrame(t *testing.T) {
	address := startOnce(t, func(conn net.Conn) {
		conn.Write(appendFrame(nil, frameResponse, []byte("OK")))
		conn.Write(appendFrame(nil, frameError, []byte("E_BAD_TOPIC no")))
	})
	settings := pubSettings{address: address, topic: "t", connections: 1, bodyBytes: 1, batch: 1, depth: 4, duration: time.Minute}
	if _, err := publish(settings); err == nil || !strings.Contains(err.Error(), "E_BAD_TOPIC") {
		t.Errorf("got %v", err)
	}
}

func TestConnsReportConnectionsThatCannotBeOpened(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	settings := connsSettings{address: listener.Addr().String(), topic: "t", channel: "c", topics: 1, connections: 20, publish: 1, consume: true, ready: 1, bodyBytes: 16, timeout: time.Minute}
	result := converseAll(settings)
	if result.Errors != 20 || result.Opened != 0 || len(result.FirstErrors) != errorsKept {
		t.Errorf("%+v", result)
	}
}

func TestConnsMeasureEveryPublishSentAlone(t *testing.T) {
	settings := connsSettings{address: startNull(t), topic: "t", channel: "c", topics: 1, connections: 10, publish: 30, ready: 1, bodyBytes: 16, timeout: time.Minute}
	for depth := range 3 {
		settings.depth = depth
		result := converseAll(settings)
		if result.Published != 300 || result.Errors != 0 || result.Missing != 0 {
			t.Errorf("depth %d: %+v", depth, result)
		}
		if (result.LatencyUS != nil) != (depth == 1) {
			t.Errorf("depth %d: latency %v", depth, result.LatencyUS)
		}
	}
}
