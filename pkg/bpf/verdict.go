// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/cilium/ebpf/btf"
)

// Class says what a verdict did with its packet.
type Class string

// The classes, in the order of enum verdict.
const (
	Continue  Class = "continue" // not decided; never counted
	Pass      Class = "pass"
	Translate Class = "translate"
	Reject    Class = "reject"
	Drop      Class = "drop"
)

// Verdict is one value of enum verdict of bpf/lib/types.h.
type Verdict struct {
	Number uint32
	Name   string // "translate_established"
	Class  Class  // "translate"
	Reason string // the contract's spelling: "established", "no-endpoints"
}

// enums are the enums of the embedded object by name, each value's name lower case and without the prefix.
var enums = sync.OnceValues(func() (map[string]map[uint32]string, error) {
	spec, err := tablesSpec()
	if err != nil {
		return nil, err
	}
	found := map[string]map[uint32]string{}
	for name, prefix := range map[string]string{
		"verdict": "VERDICT_", "hook": "HOOK_", "reason": "REASON_", "note": "NOTE_", "action": "ACTION_", "tier_name": "TIER_",
		"backend_state": "BACKEND_", "kind": "KIND_", "member": "MEMBER_", "flow_flags": "FLOW_", "flow_seen": "SEEN_",
	} {
		var enum *btf.Enum
		if err := spec.Types.TypeByName(name, &enum); err != nil {
			return nil, fmt.Errorf("read enum %s from the embedded BPF object: %w", name, err)
		}
		found[name] = valueNames(enum, prefix)
	}
	return found, nil
})

func valueNames(enum *btf.Enum, prefix string) map[uint32]string {
	names := map[uint32]string{}
	for _, v := range enum.Values {
		if name := strings.TrimPrefix(v.Name, prefix); name != "MAX" {
			names[uint32(v.Value)] = strings.ToLower(name)
		}
	}
	return names
}

// enumName is the name of one value, or its number when the object does not know it.
func enumName(enum string, value uint32) string {
	if all, err := enums(); err == nil {
		if name, ok := all[enum][value]; ok {
			return name
		}
	}
	return fmt.Sprint(value)
}

// Verdicts lists enum verdict in its order, without the end mark.
func Verdicts() []Verdict {
	all, err := enums()
	if err != nil {
		return nil
	}
	verdicts := make([]Verdict, 0, len(all["verdict"]))
	for number, name := range all["verdict"] {
		verdicts = append(verdicts, newVerdict(number, name))
	}
	sort.Slice(verdicts, func(i, j int) bool { return verdicts[i].Number < verdicts[j].Number })
	return verdicts
}

// VerdictOf names one verdict; an unknown number gets itself as its reason and no class.
func VerdictOf(number uint32) Verdict {
	name := enumName("verdict", number)
	if !strings.Contains(name, "_") && number != 0 {
		return Verdict{Number: number, Name: name, Reason: name}
	}
	return newVerdict(number, name)
}

func newVerdict(number uint32, name string) Verdict {
	class, reason, _ := strings.Cut(name, "_")
	return Verdict{Number: number, Name: name, Class: Class(class), Reason: strings.ReplaceAll(reason, "_", "-")}
}

// Refusals are the verdicts of packets that a Service did not get, and that events tell of (bpf/lib/types.h: verdict_is_reject,
// verdict_is_drop).
func Refusals() (all []Verdict) {
	for _, v := range Verdicts() {
		if v.Class == Drop || v.Class == Reject && v.Number < uint32(NearlbVerdictVERDICT_REJECT_ECHO) {
			all = append(all, v)
		}
	}
	return all
}

// Spelled is the whole verdict in the contract's spelling: "reject-no-endpoints".
func (v Verdict) Spelled() string { return strings.ReplaceAll(v.Name, "_", "-") }

// Hooks lists enum hook in its order: "from_pod", "to_pod" ...
func Hooks() []string {
	all, err := enums()
	if err != nil {
		return nil
	}
	hooks := make([]string, len(all["hook"]))
	for number, name := range all["hook"] {
		if int(number) < len(hooks) {
			hooks[number] = name
		}
	}
	return hooks
}

// ReasonName is the contract's spelling of enum reason: "same-node".
func ReasonName(value uint8) string { return dashed("reason", value) }

// ReasonNumber is the reverse of ReasonName; an unknown name is 0, "none".
func ReasonNumber(name string) uint8 { return enumNumber("reason", name) }

// NoteName is the spelling of enum note: "no-hints"; "" for none.
func NoteName(value uint8) string {
	if value == 0 {
		return ""
	}
	return dashed("note", value)
}

// NoteNumber is the reverse of NoteName; an unknown name is 0.
func NoteNumber(name string) uint8 { return enumNumber("note", name) }

func enumNumber(enum, name string) uint8 { return enumNumbers()[enum][name] }

// enumNumbers are the numbers of the enums' values by their spelling: each publication asks for some.
var enumNumbers = sync.OnceValue(func() map[string]map[string]uint8 {
	all, err := enums()
	if err != nil {
		return nil
	}
	numbers := map[string]map[string]uint8{}
	for _, enum := range []string{"reason", "note"} {
		numbers[enum] = make(map[string]uint8, len(all[enum]))
		for number, name := range all[enum] {
			numbers[enum][strings.ReplaceAll(name, "_", "-")] = uint8(number)
		}
	}
	return numbers
})

// ActionName is the contract's spelling of enum action: "balance", "reject", "drop".
func ActionName(value uint8) string { return dashed("action", value) }

// TierName is the contract's spelling of enum tier_name: "node", "zone", "region", "cluster".
func TierName(value uint8) string { return dashed("tier_name", value) }

// StateName is the contract's spelling of enum backend_state: "active", "draining", "quiet", "gone", "free".
func StateName(value uint8) string {
	if value == uint8(NearlbBackendStateBACKEND_GONE_KEPT) {
		value = uint8(NearlbBackendStateBACKEND_GONE)
	}
	return dashed("backend_state", value)
}

// SeenNames spells the bits of enum flow_seen that are set, in their order.
func SeenNames(bits uint32) []string {
	return bitNames("flow_seen", bits&(1<<uint32(NearlbTriedTRIED_SHIFT)-1))
}

// FlowFlagNames spells the bits of enum flow_flags that are set, in their order.
func FlowFlagNames(bits uint8) []string { return bitNames("flow_flags", uint32(bits)) }

// MemberNames spells the bits of enum member that are set, in their order.
func MemberNames(bits uint8) []string { return bitNames("member", uint32(bits)) }

func dashed(enum string, value uint8) string {
	return strings.ReplaceAll(enumName(enum, uint32(value)), "_", "-")
}

func bitNames(enum string, bits uint32) []string {
	names := []string{}
	for bit := uint32(1); bit != 0; bit <<= 1 {
		if bits&bit != 0 {
			names = append(names, strings.ReplaceAll(enumName(enum, bit), "_", "-"))
		}
	}
	return names
}
