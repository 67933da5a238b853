package main

import (
	"encoding/binary"
	"fmt"
)

// Protocol V2, as far as a load generator needs it. Ref: docs/protocols/nsq.md.

const (
	magic = "  V2"

	frameResponse = 0
	frameError    = 1
	frameMessage  = 2

	frameHeadBytes = 8 // size and frame type
	// Inside a message frame's data: timestamp i64, attempts u16, id 16 bytes, body.
	messageIDStart   = 10
	messageIDBytes   = 16
	messageHeadBytes = messageIDStart + messageIDBytes

	finishBytes = len("FIN ") + messageIDBytes + len("\n")
)

var (
	heartbeat = []byte("_heartbeat_")
	closeWait = []byte("CLOSE_WAIT")
	nop       = []byte("NOP\n")
)

// appendFrame appends one server frame to dst.
//
// Layout: size u32 (of what follows) | frame type u32 | data.
func appendFrame(dst []byte, frameType uint32, data []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+len(data)))
	dst = binary.BigEndian.AppendUint32(dst, frameType)
	return append(dst, data...)
}

// appendMessage appends one message frame (first attempt) to dst.
func appendMessage(dst []byte, id uint64, body []byte) []byte {
	data := make([]byte, 0, messageHeadBytes+len(body))
	data = binary.BigEndian.AppendUint64(data, 0)
	data = binary.BigEndian.AppendUint16(data, 1)
	data = fmt.Appendf(data, "%016x", id)
	data = append(data, body...)
	return appendFrame(dst, frameMessage, data)
}

func identifyCommand(clientID string) []byte {
	// Without feature_negotiation the answer is a plain OK, which every server gives alike.
	settings := fmt.Appendf(nil, `{"client_id":%q,"hostname":%q,"user_agent":"headrace-loadgen"}`, clientID, clientID)
	return appendSized([]byte("IDENTIFY\n"), settings)
}

func pubCommand(topic string, body []byte) []byte {
	return appendSized(fmt.Appendf(nil, "PUB %s\n", topic), body)
}

// mpubCommand publishes body count times in one command.
//
// Layout after the line: body size u32 | count u32 | count times (length u32 | data).
func mpubCommand(topic string, body []byte, count int) []byte {
	command := fmt.Appendf(nil, "MPUB %s\n", topic)
	command = binary.BigEndian.AppendUint32(command, uint32(4+count*(4+len(body))))
	command = binary.BigEndian.AppendUint32(command, uint32(count))
	for range count {
		command = appendSized(command, body)
	}
	return command
}

func subCommand(topic, channel string) []byte {
	return fmt.Appendf(nil, "SUB %s %s\n", topic, channel)
}

func rdyCommand(count int) []byte {
	return fmt.Appendf(nil, "RDY %d\n", count)
}

// appendSized appends a u32 length and data.
func appendSized(dst, data []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(data)))
	return append(dst, data...)
}
