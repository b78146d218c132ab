"""Links through an MQTT broker: key exchange, reliable streams of encrypted frames, presence.

The broker is trusted only to deliver packets.
"""
