package main

import (
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"
)

// report prints result as one JSON object, or as the given text for people.
func report(asJSON bool, result any, text string) error {
	if !asJSON {
		_, err := fmt.Println(text)
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// rate is what a run moved in what time. Megabytes are 10^6 bytes of message bodies.
type rate struct {
	Messages      int64   `json:"messages"`
	Seconds       float64 `json:"seconds"`
	MessagesPerS  float64 `json:"messages_per_s"`
	MegabytesPerS float64 `json:"megabytes_per_s"`
	// LoadCPUShare is how much of one core the generator itself used: near 1 means that it, not the
	// server, set the figure.
	LoadCPUShare float64 `json:"load_cpu_share"`
}

func newRate(messages, bodyBytes int64, elapsed, cpu time.Duration) rate {
	seconds := max(elapsed.Seconds(), 1e-9)
	return rate{
		Messages:      messages,
		Seconds:       seconds,
		MessagesPerS:  float64(messages) / seconds,
		MegabytesPerS: float64(bodyBytes) / seconds / 1e6,
		LoadCPUShare:  cpu.Seconds() / seconds,
	}
}

func (r rate) String() string {
	return fmt.Sprintf("%d messages in %.3f s: %.0f msg/s, %.1f MB/s, load CPU %.0f %%",
		r.Messages, r.Seconds, r.MessagesPerS, r.MegabytesPerS, 100*r.LoadCPUShare)
}

// cpuTime is the processor time this process has used, in user and kernel mode.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // impossible with these arguments
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
