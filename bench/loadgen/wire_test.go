package main

import (
	"encoding/hex"
	"strings"
	"testing"
)

func fromHex(t *testing.T, text string) string {
	t.Helper()
	data, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The vectors were exchanged with a real nsqd.
func TestCommandsMatchTheProtocolVectors(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"PUB", pubCommand("events", []byte("hello")), "505542206576656e74730a 00000005 68656c6c6f"},
		{"MPUB", mpubCommand("events", []byte("a"), 2), "4d505542206576656e74730a 0000000e 00000002 00000001 61 00000001 61"},
		{"SUB", subCommand("events", "archive"), "535542206576656e747320617263686976650a"},
		{"RDY", rdyCommand(10), "5244592031300a"},
		{"OK", appendFrame(nil, frameResponse, []byte("OK")), "00000006 00000000 4f4b"},
	} {
		if want := fromHex(t, c.want); string(c.got) != want {
			t.Errorf("%s is %x, want %x", c.name, c.got, want)
		}
	}
}

func TestCommandReaderTakesCommandsCutAnywhere(t *testing.T) {
	stream := magic + string(identifyCommand("c")) + string(subCommand("t", "c")) + "RDY 7\n" +
		string(pubCommand("t", []byte("FIN in a body"))) + string(mpubCommand("t", []byte("b"), 3)) +
		"FIN 0123456789abcdef\nREQ 0123456789abcdef 50\nNOP\nTOUCH 0123456789abcdef\nCLS\n"
	for _, step := range []int{1, 2, 3, 7, len(stream)} {
		reader := commandReader{buf: make([]byte, 256)}
		total := commandsSeen{ready: -1}
		for at := 0; at < len(stream); at += step {
			reader.end += copy(reader.buf[reader.end:], stream[at:min(at+step, len(stream))])
			seen, err := reader.parse()
			if err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			total.replies += seen.replies
			total.settled += seen.settled
			total.closing = total.closing || seen.closing
		}
		if want := (commandsSeen{replies: 4, settled: 2, ready: -1, closing: true}); total != want {
			t.Errorf("step %d: %+v, want %+v", step, total, want)
		}
	}
}

func TestCommandReaderRefusesOtherProtocols(t *testing.T) {
	reader := commandReader{buf: []byte("GET / HTTP/1.1"), end: 14}
	if _, err := reader.parse(); err == nil || err.Error() != "E_BAD_PROTOCOL" {
		t.Errorf("got %v", err)
	}
}
